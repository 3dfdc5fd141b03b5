"""Remembered: where Inductor's code for a region lies on disk, by what the region does, so that a later process only loads it.

Inductor's own cache is by the graph that it is given; making the graph and its key takes longer than everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tracemill.compiler import torch_internals

_PASSES = (
    *("pre_grad_custom_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass"),
    *("joint_custom_pre_pass", "joint_custom_post_pass", "_pre_fusion_custom_pass"),
    "_post_fusion_custom_pass",
)
"""Settings that hold passes of the user's, which may do something else the next time."""

_SOURCES = "_inductor", "_decomp", "_refs"
"""The parts of PyTorch that write the code."""

Run = Callable[[list[Any]], Sequence[Any]]


class Remembered:
    """The code of one region, under Inductor's settings as they are now.

    description: what the region does and what its inputs are like; None where nothing is to be remembered.
    """

    def __init__(self, description: str | None) -> None:
        self._file = None if description is None or not _is_caching() else _file(description)

    def load(self) -> Run | None:
        """The function, from a list of inputs that it empties; None where there is none."""
        if self._file is None or not self._file.exists():
            return None
        inductor = torch_internals.inductor()
        try:
            found = json.loads(self._file.read_text())
            with without_headers():
                return inductor.load(
                    found["key"], os.path.join(inductor.cache_dir(), found["path"])
                )
        except Exception:  # what is left of a cache that was cleaned; it is compiled again
            return None

    def keep(self, made: Any) -> None:
        """Remembers what Inductor made, where that is a function of a module that it wrote and nothing besides."""
        module = sys.modules.get(made.current_callable.__module__)
        path = getattr(module, "__file__", None)
        if self._file is None or path is None or made.constants or not made.cache_key:
            return
        if getattr(module, "call", None) is not made.current_callable:
            return
        folder = torch_internals.inductor().cache_dir()
        entry = {"key": made.cache_key, "path": os.path.relpath(path, folder)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(entry))
        partial.replace(self._file)


def _is_caching() -> bool:
    config = torch_internals.inductor().config
    used = config.fx_graph_cache and not config.force_disable_caches
    return used and not any(getattr(config, name, None) for name in _PASSES)


def _file(description: str) -> Path:
    inductor = torch_internals.inductor()
    settings = sorted(inductor.config.save_config_portable().items())
    now = (
        settings,
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
        os.environ.get("ATEN_CPU_CAPABILITY"),
    )
    text = "\n".join((description, repr(now), _surroundings()))
    name = hashlib.sha256(text.encode()).hexdigest()
    return Path(inductor.cache_dir()) / "tracemill" / f"{name}.json"


@cache
def _surroundings() -> str:
    """All that code depends on and that is the same throughout a process: PyTorch, this package, the CPU, the compiler."""
    inductor = torch_internals.inductor()
    try:
        compiler = os.path.realpath(inductor.cpp_compiler())
        stamp = compiler, os.stat(compiler).st_mtime_ns
    except (OSError, RuntimeError):
        stamp = "", 0
    folders = [os.path.join(os.path.dirname(torch.__file__), name) for name in _SOURCES]
    own = Path(__file__).resolve().parent.parent
    files = sorted(file for folder in (*folders, own) for file in _files(str(folder)))
    flags = inductor.vector_instructions.x86_isa_checker()
    cpu = platform.machine(), torch.backends.cpu.get_cpu_capability(), flags
    return repr((torch.__version__, torch.version.git_version, sys.version, cpu, stamp, files))


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """The sources under a folder, each with the time it was written and its size."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files(entry.path)
        elif entry.name.endswith(".py"):
            found = entry.stat()
            yield entry.path, found.st_mtime_ns, found.st_size


@contextmanager
def without_headers() -> Generator[None]:
    """Inductor compiles no headers in the block; it would read them all again to see whether they are as they were."""
    codecache = torch_internals.inductor().codecache
    made = codecache._precompile_header
    codecache._precompile_header = lambda *_args, **_options: None
    try:
        yield
    finally:
        codecache._precompile_header = made
