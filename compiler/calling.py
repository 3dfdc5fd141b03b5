"""How a callable is called: its parameters, the binding of a call's arguments, and Python's own errors."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from tracemill.compiler.state_checks import same
from tracemill.compiler.symbol import Source
from tracemill.compiler.trace import Trace

P = inspect.Parameter


class CallForm:
    """A callable with its parameters, as one calls it.

    parameters: of the call, `self` left out for methods and modules.
    source: the line where its function begins; None for one that is not written in Python.
    bind: from a call's arguments to a value for each parameter, in order; raises the TypeError that Python would.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        function, leading = _function_of(target)
        self._facts = _facts(function)
        self.source = None if function is None else source_of(function.__code__)
        if function is None:
            self.parameters = [P("args", P.VAR_POSITIONAL), P("kwargs", P.VAR_KEYWORD)]
            binder: Callable[..., Any] = lambda *args, **kwargs: (args, kwargs)  # noqa: E731
        else:
            own = inspect.signature(function, follow_wrapped=False).parameters
            parameters = list(own.values())
            binder = _binder(function, parameters)
            first = parameters[0].kind if parameters else None
            bare = leading and first is not P.VAR_POSITIONAL
            self.parameters = parameters[1:] if bare else parameters
            binder = _skipping_self(binder, leading[0], bare=bool(bare)) if leading else binder
        self.bind: Callable[..., tuple[Any, ...]] = binder

    def is_current(self) -> bool:
        """Whether the target is still called like this: its function, and that one's code and defaults, may be replaced."""
        return isinstance(self.target, Trace) or same(
            _facts(_function_of(self.target)[0]), self._facts
        )

    def item_names(self, parameter: P, value: Any) -> list[str]:
        """What the items of `*args` and `**kwargs` are called by whoever the target wraps; "." marks a full name."""
        if parameter.kind is P.VAR_KEYWORD:
            return [f".{name}" for name in value]
        if parameter.kind is not P.VAR_POSITIONAL:
            return []
        try:
            called = (
                self.target.forward if isinstance(self.target, torch.nn.Module) else self.target
            )
            wrapped = inspect.signature(called).parameters.values()
        except (TypeError, ValueError):
            return []
        positional = (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD)
        names = [f".{other.name}" for other in wrapped if other.kind in positional]
        return names[len(self.parameters) - 1 if self.parameters[0] is not parameter else 0 :]

    def call(self, values: Sequence[Any]) -> Any:
        """Calls the target with a value for each parameter."""
        return self.apply(self.target, values, [parameter.name for parameter in self.parameters])

    def apply(
        self, function: Callable[..., Any], values: Sequence[Any], names: Sequence[str]
    ) -> Any:
        """Calls a function that has the target's parameters under these names."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter, value, name in zip(self.parameters, values, names, strict=True):
            if parameter.kind is P.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is P.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is P.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return function(*args, **kwargs)


def source_of(code: CodeType) -> Source:
    """The line where a function begins: its `def`, below decorators."""
    first = code.co_firstlineno
    lines = itertools.islice(itertools.count(first), 100)
    texts = ((number, linecache.getline(code.co_filename, number).strip()) for number in lines)
    found = (number for number, text in texts if text.startswith(("def ", "async def ", "class ")))
    return Source(code.co_filename, first if code.co_name == "<lambda>" else next(found, first))


def _function_of(target: Callable[..., Any]) -> tuple[FunctionType | None, tuple[Any, ...]]:
    """The Python function that receives the call's arguments, and the `self` before them."""
    if isinstance(target, Trace):
        return target.callable("minimal"), ()  # of all texts the one that is not decorated
    if isinstance(target, torch.nn.Module):
        forward = target.forward
        if isinstance(forward, MethodType) and isinstance(forward.__func__, FunctionType):
            return forward.__func__, (forward.__self__,)
        return None, ()
    if isinstance(target, MethodType) and isinstance(target.__func__, FunctionType):
        return target.__func__, (target.__self__,)
    if isinstance(target, FunctionType):
        return target, ()
    call = inspect.getattr_static(type(target), "__call__", None)
    if isinstance(call, FunctionType) and not isinstance(target, functools.partial):
        return call, (target,)
    return None, ()


def _facts(function: FunctionType | None) -> Any:
    """What decides how a function is called."""
    if function is None:
        return None
    defaults = dict(function.__kwdefaults__ or {})
    return function, function.__code__, function.__defaults__, defaults


def _skipping_self(binder: Callable[..., Any], owner: Any, *, bare: bool) -> Callable[..., Any]:
    def bind(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        values = binder(owner, *args, **kwargs)
        return values[1:] if bare else (values[0][1:], *values[1:])

    return bind


def _binder(function: FunctionType, parameters: Sequence[P]) -> Callable[..., tuple[Any, ...]]:
    """A function with `function`'s parameters and name that returns its arguments.

    Calling it with wrong arguments raises the TypeError that calling `function` would.
    """
    text = signature_text(parameters, lambda _value: "None")
    names = "".join(f"{parameter.name}, " for parameter in parameters)
    namespace: dict[str, Any] = {}
    exec(f"def binder({text}):\n  return ({names})", namespace)
    binder = namespace.pop("binder")
    binder.__name__, binder.__qualname__ = function.__name__, function.__qualname__
    binder.__defaults__ = function.__defaults__
    binder.__kwdefaults__ = function.__kwdefaults__
    return binder


def signature_text(parameters: Sequence[P], default_text: Callable[[Any], str]) -> str:
    """Parameters as they stand between the parentheses of a `def`."""
    parts: list[str] = []
    star = False
    for index, parameter in enumerate(parameters):
        kind = parameter.kind
        if (
            index
            and parameters[index - 1].kind is P.POSITIONAL_ONLY
            and kind is not P.POSITIONAL_ONLY
        ):
            parts.append("/")
        if kind is P.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or kind in (P.KEYWORD_ONLY, P.VAR_POSITIONAL)
        mark = {P.VAR_POSITIONAL: "*", P.VAR_KEYWORD: "**"}.get(kind, "")
        default = "" if parameter.default is P.empty else f"={default_text(parameter.default)}"
        parts.append(f"{mark}{parameter.name}{default}")
    if parameters and parameters[-1].kind is P.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)
