"""The state of PyTorch and of the process while a program is interpreted, and its restoration."""

from __future__ import annotations

import threading
from collections import abc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.random_state import (
    Generator,
    random_state,
    same_random_state,
    set_random_state,
)
from tracemill.compiler.settings import AUTOCAST_DEVICES, SETTINGS, Ambient, default_device
from tracemill.passes.interpretation.functorch import Bypass
from tracemill.passes.interpretation.gradients import backward, optimisers
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python.printing import PRINTING
from tracemill.passes.interpretation.python.sharp_edges import NUMPY
from tracemill.passes.interpretation.randomness import (
    STAND_INS,
    DefaultGenerator,
    make_generator,
)
from tracemill.passes.interpretation.replacements import (
    encoders,
    functions,
    module_hooks,
    torchscript,
)
from tracemill.passes.interpretation.replacements.replacement import Replacement, standing_in
from tracemill.passes.interpretation.stand_in import interpretation, under_way


class _CompilingFlag:
    """Stands where PyTorch keeps `is_compiling`: a bool that is true only in a thread that interprets."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __bool__(self) -> bool:
        return interpretation.get() is not None or bool(self.before)

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __ror__ = __or__
    __rand__ = __and__
    __hash__ = None  # type: ignore[assignment]


class _GeneratorType(type(Generator)):
    """The type of what stands where `torch.Generator` is found."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        recording: Any = interpretation.get()
        if recording is None:
            return Generator(*args, **kwargs)
        return make_generator(recording, *args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Generator)


class _GeneratorName(Generator, metaclass=_GeneratorType):
    pass


def _clear_casts(recording: Any) -> None:
    recording.casts.clear()
    _clear_autocast_cache()


def _uncompiled(
    recording: Any, fn: Callable[..., Any], args: Any = None, *_: Any, **__: Any
) -> Any:
    """torch.cond and the like: seen by the interpreter, not handed to torch.compile.

    args: what to call `fn` with; None where that is done with what is returned.
    """
    return fn if args is None else fn(*args)


_clear_autocast_cache = torch.clear_autocast_cache
_compiler: Any = torch.compiler
_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch, "Generator", _GeneratorName),
    (torch, "clear_autocast_cache", standing_in(_clear_autocast_cache, _clear_casts)),
    (
        *internals.hop_compiler,
        standing_in(getattr(*internals.hop_compiler), _uncompiled),
    ),
    *(
        (owner, name, standing_in(getattr(owner, name), handler))
        for owner, name, handler in STAND_INS
    ),
)
"""What PyTorch's names are for as long as any thread interprets; in other threads they do what they always do."""

_DEFAULT_GENERATOR = DefaultGenerator()


def _replaced() -> abc.Iterator[tuple[Any, str, Any]]:
    yield from _REPLACED
    yield torch.random, "default_generator", _DEFAULT_GENERATOR
    yield from NUMPY
    yield from functions.replaced()
    yield from module_hooks.replaced()
    yield from torchscript.replaced()
    yield from optimisers.REPLACED
    yield backward.REPLACED
    yield from encoders.replaced()
    yield _compiler, "_is_compiling_flag", _CompilingFlag(_compiler._is_compiling_flag)


_COMPILING = Replacement(_replaced)
"""PyTorch's flag says that it compiles, in this thread, and its functions on random states are stood in for."""


@contextmanager
def _unchanged_random_state(generators: Sequence[torch.Generator]) -> abc.Generator[None]:
    before = random_state(generators)
    alone = (
        threading.active_count() == 1
    )  # other threads draw from PyTorch's own generators as they like
    try:
        yield
        now = random_state(generators)
        if not same_random_state(now if alone else (*before[:2], now[2]), before):
            raise UnsupportedError(
                "the program changed the state of a generator that it found by itself (a global, an attribute), or "
                "drew numbers unseen; pass the generator to the jitted function as an argument, and seed by "
                "torch.manual_seed"
            )
    finally:
        if alone:
            set_random_state(before)
        for generator, state in before[2]:
            generator.set_state(state)


@contextmanager
def _unchanged_settings(around: Ambient) -> abc.Generator[None]:
    """Raises when the program leaves a setting changed, and puts all back."""
    depth, device = internals.function_mode_depth(), default_device()
    try:
        yield
        left = around.differences(Ambient.now())
        if internals.function_mode_depth() != depth or default_device() != device:
            left.append("default device or function modes")
        refuse_changed_settings(left)
    finally:
        _restore(around)
        if default_device() != device:
            torch.set_default_device(device)


def refuse_changed_settings(names: Sequence[str]) -> None:
    """Raises UnsupportedError where the program left settings of PyTorch changed."""
    if names:
        raise UnsupportedError(
            f"the program leaves PyTorch's settings changed: {', '.join(names)}; change them around the call of the "
            "jitted function, or back at its end"
        )


def _restore(around: Ambient) -> None:
    torch.set_grad_enabled(around.grad)
    for setting, value in zip(SETTINGS, around.settings, strict=True):
        if setting.get() != value:
            setting.set(value)
    autocast = dict(around.autocast)
    for device in AUTOCAST_DEVICES:
        if torch.is_autocast_enabled(device) != (device in autocast):
            torch.set_autocast_enabled(device, device in autocast)
        if device in autocast:
            torch.set_autocast_dtype(device, autocast[device])


@contextmanager
def interpreting(
    interpreter: Interpreter, generators: Sequence[torch.Generator] = ()
) -> abc.Generator[None]:
    """The block's torch calls go to `interpreter`; everything is as before afterwards, also after an error.

    generators: those whose state must not change meanwhile, besides PyTorch's own. Raises UnsupportedError when one
    did, and when a setting of PyTorch is left changed.
    """
    token = interpretation.set(interpreter)
    under_way.add(interpreter)
    try:
        with ExitStack() as stack:
            stack.enter_context(_unchanged_random_state(generators))
            stack.enter_context(_unchanged_settings(interpreter.around))
            stack.enter_context(_COMPILING)
            stack.enter_context(PRINTING)
            stack.enter_context(Bypass(interpreter))
            stack.enter_context(interpreter)
            yield
    finally:
        interpretation.reset(token)
        under_way.discard(interpreter)
