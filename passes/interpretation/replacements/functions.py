"""What function modes do not see: `torch.autograd.Function`, the regions of `torch.utils.checkpoint`, and dispatch modes.

A function with a backward of its own is one line, so that it keeps that backward. What is checkpointed is recorded like
everything else; its lines know their region, whose values the backward computes again instead of keeping them. A dispatch
mode of the program's would see nothing of what is recorded above it: it is refused.
"""

from __future__ import annotations

import sys
import weakref
from collections import abc
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import checkpoint

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.oracle import is_pytorch
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves
from tracemill.passes.interpretation.location import is_own
from tracemill.passes.interpretation.python.trial import (
    Handed,
    as_given,
    effects_undone,
    refuse_new,
)
from tracemill.passes.interpretation.python.watch import is_watched
from tracemill.passes.interpretation.stand_in import interpretation, refusal

_Function: Any = torch.autograd.Function
_checkpoint: Any = checkpoint

_applied: weakref.WeakKeyDictionary[type, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _plain_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    """What `apply` does in C++."""
    return internals.FunctionBase.__dict__["apply"].__get__(None, cls)(*args, **kwargs)


def applied(cls: type) -> Callable[..., Any]:
    """`cls.apply` as a function of its own, which traces can name."""
    known = _applied.get(cls)
    if known is None:
        reference = weakref.ref(cls)

        def apply(*args: Any) -> Any:
            function: Any = reference()
            args = tuple(map(as_given, args))
            if internals.torch_function_enabled():
                return function.apply(*args)
            with effects_undone(function, *args) as written:  # PyTorch is only asked about it
                result = function.apply(*args)
            refuse_new(written)
            return result

        apply.__name__ = f"{cls.__name__}_apply"
        apply.__qualname__ = f"{cls.__qualname__}.apply"
        apply.__module__ = cls.__module__
        apply.__wrapped__ = cls  # type: ignore[attr-defined]
        known = _applied[cls] = apply
    return known


def _apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Stands for `torch.autograd.Function.apply`: one line of the program that is traced."""
    recording: Any = interpretation.get()
    if recording is None or not internals.torch_function_enabled():
        return _plain_apply(cls, *args, **kwargs)
    if cls is _checkpoint.CheckpointFunction:
        function, _preserve, *inputs = args
        watched = any(isinstance(item, torch.Tensor) and item.requires_grad for item in inputs)
        with checkpointed(recording), nullcontext() if watched else torch.no_grad():
            return function(*inputs)
    return recording.record(applied(cls), tuple(map(_as_it_is, args)), kwargs)


def _as_it_is(value: Any) -> Any:
    """An argument that the function may write to, kept as the object that it is."""
    if type(value) in (list, dict) and not any(isinstance(x, torch.Tensor) for x in leaves(value)):
        return Handed(value)
    return value


def is_users(line: BoundSymbol) -> bool:
    """Whether a line calls a function of the user's: of a `torch.autograd.Function`, or a custom operator."""
    impl = getattr(line.sym, "inner", line.sym).impl  # of a call under other settings
    return impl is not None and line.sym.path is None and not is_pytorch(impl)


@contextmanager
def checkpointed(recording: Any) -> abc.Generator[None]:
    """What is recorded in the block belongs to one region; inner regions are part of the outermost one."""
    if recording.region:
        yield
        return
    recording.region = recording.regions = recording.regions + 1
    try:
        yield
    finally:
        recording.region = 0


def _region(*args: Any, **kwargs: Any) -> abc.Iterator[None]:
    """Stands for the generator with which `checkpoint` surrounds the call of its function."""
    recording: Any = interpretation.get()
    if recording is None:
        return _generator(*args, **kwargs)
    return _recorded_region(recording)


def _recorded_region(recording: Any) -> abc.Iterator[None]:
    with checkpointed(recording):
        yield


def _enter(self: Any) -> Any:
    """Stands for `TorchDispatchMode.__enter__`."""
    recording: Any = interpretation.get()
    if recording is not None:
        frame: Any = sys._getframe(1)
        while not (is_own(frame.f_code.co_filename) or is_watched(frame.f_code.co_filename)):
            frame = frame.f_back
        if not is_own(frame.f_code.co_filename):
            message = (
                f"the program enters {type(self).__name__}, a mode that is told of every operation{recording.at()}, and no "
                "compiled program would tell it; enter it around the call of the jitted function"
            )
            refusal(
                UnsupportedError(message)
            )  # raised at the end: what surrounds the mode is left again
    return _ENTER(self)


_ENTER: Any = internals.TorchDispatchMode.__enter__
_generator = _checkpoint._checkpoint_without_reentrant_generator

_decorated: Any = _checkpoint.checkpoint.__wrapped__


def replaced() -> abc.Iterator[tuple[Any, str, Any]]:
    """What stands where PyTorch looks for these while a program is interpreted."""
    yield internals.SingleLevelFunction, "apply", classmethod(_apply)
    yield internals.TorchDispatchMode, "__enter__", _enter
    yield _checkpoint, "_checkpoint_without_reentrant_generator", _region
    if not hasattr(_decorated, "__dynamo_disable"):
        yield (
            _decorated,
            "__dynamo_disable",
            _decorated,
        )  # else the first call imports Dynamo and stores its own
