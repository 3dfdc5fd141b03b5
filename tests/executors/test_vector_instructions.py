"""Vector instructions: regions are compiled for the best kind without trying it first, and for another where that fails."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tracemill.compiler import torch_internals

PROGRAM = """
import torch, tracemill as tm
x = torch.randn(64)
jf = tm.jit(lambda x: (x * 2).sin() + x.exp(), executors=[tm.executors.get("inductor")])
torch.testing.assert_close(jf(x), (x * 2).sin() + x.exp())
assert tm.last_traces(jf)[-1].bound_symbols[0].sym.name == "inductor0", tm.last_traces(jf)[-1]
"""

COMPILER = """#!/bin/sh
case "$*" in *{refused}*) exit 1;; esac
case "$*" in *-shared*) echo "$*" >> {log};; esac
exec {compiler} "$@"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="Inductor tries nothing elsewhere"
    ),
]


def built(folder: Path, *, refused: str) -> list[str]:
    """The commands that built a library for a program's first call, by a compiler that refuses some flag."""
    compiler, log = folder / "g++", folder / "log"
    text = COMPILER.format(
        refused=refused, log=log, compiler=torch_internals.inductor().cpp_compiler()
    )
    compiler.write_text(text)
    compiler.chmod(0o755)
    log.touch()
    environment = (
        os.environ
        | {
            "CXX": str(compiler),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # they would be left behind, outside of that folder
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
    )
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)
    return log.read_text().splitlines()


def test_nothing_but_the_region_is_built(tmp_path: Path) -> None:
    assert len(built(tmp_path, refused="-no-such-flag")) == 1


def test_where_the_compiler_refuses_the_best_kind_the_region_has_another(tmp_path: Path) -> None:
    if not {"avx2", "avx512"} <= set(
        torch_internals.inductor().vector_instructions.x86_isa_checker()
    ):
        pytest.skip("the CPU has one kind of vector instructions at most")
    commands = built(tmp_path, refused="-mavx512")
    assert "-mavx2" in commands[-1]
    assert "-mavx512" not in commands[-1]
