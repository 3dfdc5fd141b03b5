"""Jitted modules: the original module in everything but its call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tracemill.compiler import services
from tracemill.compiler import torch_internals as internals


class JittedModule:
    """What a jitted module's class has besides the original's.

    The jitted module shares the original's `__dict__`: parameters, buffers, submodules, hooks and flags are the same
    objects under the same names, whichever of the two they are read or set through.
    """

    __slots__ = ()

    @internals.left_to_python
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._tracemill_caller(*args, **kwargs)

    @property
    def __tracemill__(self: Any) -> Any:
        return self._tracemill_caller.__tracemill__

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return _jit_again(copy.deepcopy(self._tracemill_original, memo), self.__tracemill__.options)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _jit_again, (self._tracemill_original, self.__tracemill__.options)


_classes: WeakKeyDictionary[type, type] = WeakKeyDictionary()


def _class_for(original: type) -> type:
    made = _classes.get(original)
    if made is None:
        slots = ("_tracemill_caller", "_tracemill_original")
        body = {
            "__slots__": slots,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
        }
        made = _classes[original] = type(original.__name__, (JittedModule, original), body)
    return made


def jitted_module(module: torch.nn.Module, caller: Callable[..., Any]) -> Any:
    """A module that is `module`, called through `caller`."""
    made: Any = object.__new__(_class_for(type(module)))
    object.__setattr__(made, "__dict__", module.__dict__)
    object.__setattr__(made, "_tracemill_caller", caller)
    object.__setattr__(made, "_tracemill_original", module)
    return made


def _jit_again(module: torch.nn.Module, options: Any) -> Any:
    """A copied or unpickled module, jitted as the original was."""
    return services.jit_again(module, options)
