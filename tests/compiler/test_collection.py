"""Garbage collection waits for compilations, and for nothing else."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

import tracemill as tm
from tracemill.compiler.collection import collection_deferred


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


def test_a_program_is_compiled_without_collections_and_run_with_them() -> None:
    enabled: list[bool] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        enabled.append(gc.isenabled())
        return x + 1

    tm.jit(program, sharp_edges="allow")(torch.ones(2))
    assert enabled[0] is False
    assert gc.isenabled()


def test_an_error_brings_it_back() -> None:
    with pytest.raises(ZeroDivisionError):
        tm.jit(lambda x: x / (1 // 0))(torch.ones(2))
    assert gc.isenabled()


def test_blocks_nest_and_overlap() -> None:
    begun, finish = threading.Event(), threading.Event()

    def other() -> None:
        with collection_deferred():
            begun.set()
            finish.wait(10)

    thread = threading.Thread(target=other)
    with collection_deferred():
        with collection_deferred():
            pass
        assert not gc.isenabled()
        thread.start()
        begun.wait(10)
    assert not gc.isenabled()
    finish.set()
    thread.join(10)
    assert gc.isenabled()


def test_who_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    with collection_deferred():
        pass
    assert not gc.isenabled()
