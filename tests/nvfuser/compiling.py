"""Compiles definitions without a GPU, in a process of its own: a stand-in for the CUDA runtime describes a GPU to nvFuser.

nvFuser divides a definition, schedules it, generates its kernels and compiles them, and stops where it would launch them.
The process reads definitions as JSON, one a line, and answers each with "" or with what went wrong.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tracemill.compiler.torch_internals import TorchDispatchMode, ensure_cuda_guard
from tracemill.executors.nvfuser.library import library

SOURCE = Path(__file__).with_name("fake_cuda.cpp")
REACHED = "Only CPU scalar tensors are supported here"
"""What nvFuser says when the kernels are there and their arguments, tensors without data, are looked at."""


def headers() -> list[Path]:
    """Where CUDA's headers are: those of its packages, or of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) / "cu13" for folder in (spec and spec.submodule_search_locations) or ()]
    folders.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")))
    return [
        folder / "include" for folder in folders if (folder / "include/crt/host_defines.h").exists()
    ]


def obstacle() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if shutil.which("g++") is None:
        return "needs g++"
    return "" if headers() else "needs the headers of CUDA 13: pip install nvidia-cuda-crt==13.0.*"


def built(source: Path, library: Path, *arguments: str) -> Path:
    """A shared library of a C++ source, with CUDA's headers."""
    command = ["g++", "-O0", "-shared", "-fPIC", "-std=c++17", str(source), "-o", str(library)]
    subprocess.run([*command, *(f"-I{folder}" for folder in headers()[:1]), *arguments], check=True)
    return library


class Compiler:
    """The process.

    dump: what nvFuser is to write of what it compiles, by its own names.
    """

    def __init__(self, dump: str = "") -> None:
        self._dump = dump

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        folder = self._folder = tempfile.TemporaryDirectory()
        torch_folder = Path(torch.__file__).parent
        includes = [torch_folder / "include", torch_folder / "include/torch/csrc/api/include"]
        library = built(
            SOURCE,
            Path(folder.name) / "libfakecuda.so",
            *(f"-I{include}" for include in includes),
            f"-L{torch_folder / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
        )
        with self._written.open("w") as written:
            return subprocess.Popen(
                [sys.executable, __file__, str(library)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written if self._dump else None,
                text=True,
                env={**os.environ, "NVFUSER_DUMP": self._dump} if self._dump else None,
            )

    @property
    def _written(self) -> Path:
        return Path(self._folder.name) / "dump"

    def dumped(self) -> str:
        """What was written since the process started."""
        return self._written.read_text()

    def fault(self, definition: str, inputs: Sequence[Any]) -> str:
        """What goes wrong when a printed definition is compiled for inputs like these; empty when nothing does."""
        described = [
            [str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride())]
            if isinstance(value, torch.Tensor)
            else value
            for value in inputs
        ]
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([definition, described]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if answer:
            return json.loads(answer)
        self.close()
        return f"nvFuser ended the process, with {process.returncode}"

    def close(self) -> None:
        """Ends the process, if it was started."""
        if "_process" in vars(self):
            process = vars(self).pop("_process")
            process.stdin.close()
            process.stdout.close()
            process.wait(60)
            self._folder.cleanup()


class WithoutData(TorchDispatchMode):
    """What nvFuser makes on the GPU by PyTorch, such as work space, has no data."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _compiled(definition: str, described: Sequence[Any]) -> str:
    nvfuser = library()
    inputs = [
        torch.empty_strided(value[1], value[2], dtype=getattr(torch, value[0]), device="meta")
        if isinstance(value, list)
        else value
        for value in described
    ]
    names: dict[str, Any] = {**vars(nvfuser), "inf": float("inf"), "nan": float("nan")}
    exec(definition, names)
    program = nvfuser.FusionDefinition()
    with program:
        names["nvfuser_fusion"](program)
    try:
        with WithoutData():
            program.execute(inputs, device=0)
    except Exception as error:
        return "" if REACHED in str(error) else str(error)
    return ""


def accept_printed_numbers(operations: Any) -> None:
    """Makes `select` take an index as it is printed: a number, where it is written with a scalar of nvFuser's."""
    select, integer = operations.select, library().DataType.Int

    def select_printed(arg: Any, index: Any, dim: int) -> Any:
        return select(arg, library().define_scalar(index, integer), dim)

    operations.select = select_printed


def main(shim: str) -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what nvFuser prints is no answer
    ctypes.CDLL(shim, mode=ctypes.RTLD_GLOBAL)
    ensure_cuda_guard()
    accept_printed_numbers(library().ops)
    for line in sys.stdin:
        answers.write(json.dumps(_compiled(*json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
