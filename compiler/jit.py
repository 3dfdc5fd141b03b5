"""jit and trace: what users call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import services
from tracemill.compiler.caller import caller_of
from tracemill.compiler.errors import OptionError
from tracemill.compiler.jitted_module import jitted_module
from tracemill.compiler.pass_base import AnyPass
from tracemill.compiler.pipeline import History, run
from tracemill.compiler.report import PassReport, Report
from tracemill.compiler.specialise import CacheInfo, Options, Specialisations
from tracemill.compiler.trace import Trace


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    printer: Any = "default",
    executors: Sequence[Any] | str | None = None,
    passes: Sequence[AnyPass] = (),
    disable_passes: Sequence[str] = (),
    cache: str | Mapping[str, Any] = "constant values",
    sharp_edges: str = "warn",
    paths: int = 32,
    entries: int = 128,
    keep_traces: bool = True,
    **unknown: Any,
) -> Any:
    """Compiles a function, method, partial or module; without `fn`, a decorator.

    The first call with inputs of a new kind traces the program, and later calls of that kind run the trace's text.
    A module gives a module whose parameters, buffers, attributes and `state_dict` are the original's.

    fn: what to compile; what is returned is called as it is.
    printer: a name, a Printer, or a mapping from stage to either, with "*" for the rest.
    executors: names or objects in order of preference; torch runs what they leave.
    passes: passes to run besides the registered ones; one of the same class as a registered one takes its place, and so
    gives it other options.
    disable_passes: names of passes to leave out.
    cache: "constant values" (one specialisation for each shape), "symbolic values" (one for many shapes of the arguments),
    "same input" (check nothing) or "no caching"; or a mapping from parameters to the sizes and numbers that differ from
    call to call, such as {"x": {0: "batch"}, "n": "n"}, by the habits of `torch.export`'s dynamic shapes.
    sharp_edges: "allow", "warn" or "error" where Python's behaviour cannot be checked at each call.
    paths: how many ways that depend on tensors' values a program may take for inputs of one kind, and for how many
        calls in a row that fail one and the same check of Python state programs are made; after that they run in eager.
    entries: how many specialisations are kept; past that the one goes that was not used for longest.
    keep_traces: whether the traces of all passes are kept for `last_traces` and its kind, or only the last, which run.

    Raises OptionError for an unknown option, printer, executor, pass or cache mode.

    >>> import torch
    >>> @jit
    ... def double(x):
    ...     return x * 2
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    if unknown:
        known = "printer, executors, passes, disable_passes, cache, sharp_edges, paths, entries, keep_traces"
        raise OptionError(
            f"jit has no option {', '.join(map(repr, unknown))}; the known ones are {known}"
        )
    asked = (executors,) if isinstance(executors, str) else executors
    options = Options(
        printer=printer,
        executors=None if asked is None else tuple(asked),
        passes=tuple(passes),
        disable_passes=tuple(disable_passes),
        cache=cache,
        sharp_edges=sharp_edges,
        paths=paths,
        entries=entries,
        keep_traces=keep_traces,
    )
    if fn is None:
        return lambda decorated: _jitted(decorated, options)
    return _jitted(fn, options)


def _jitted(fn: Callable[..., Any], options: Options) -> Any:
    if not callable(fn):
        raise TypeError(f"jit takes a callable, not a {type(fn).__name__}")
    state = Specialisations(fn, options)
    caller = caller_of(state)
    if isinstance(fn, torch.nn.Module):
        return jitted_module(fn, caller)
    try:
        functools.update_wrapper(caller, fn)
    except (AttributeError, TypeError):  # a callable without a name, such as a partial of a partial
        pass
    caller.__wrapped__ = fn  # type: ignore[attr-defined]
    return caller


services.jit_again = _jitted


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
    """The trace of a call of `fn`: acquired and named, not optimised, and run by no executor.

    Its arguments are the call's tensors, then the tensors that the program uses by itself, such as parameters, then the
    sizes and numbers that differ from call to call. All keyword arguments are the call's: what these are is said by
    tracing a jitted function, whose `cache` and `sharp_edges` hold, as in `trace(jit(fn, cache="symbolic values"), x)`.

    >>> import torch
    >>> print(trace(lambda x: x + 1, torch.ones(2)).text("minimal"))
    import torch
    <BLANKLINE>
    def computation(x):
      t0 = torch.Tensor.add(x, 1)
      return t0
    <BLANKLINE>
    """
    state = getattr(fn, "__tracemill__", None)
    if not isinstance(state, Specialisations):
        state = Specialisations(fn, Options())
    context = state.context_for(state.form.bind(*args, **kwargs))
    stages = ("interpretation", "proxy_renaming")
    passes = state.options.resolved_passes()
    chosen = [registered for registered in passes if registered.item.stage in stages]
    computation = run(chosen, context, History()).computation
    context.show()
    return computation


def _state(jf: Any) -> Specialisations:
    state = getattr(jf, "__tracemill__", None)
    if not isinstance(state, Specialisations):
        raise TypeError(f"this is no jitted function or module: {jf!r}")
    return state


def last_traces(jf: Any) -> list[Trace]:
    """The computation after each pass of the latest call's specialisation, oldest first; the last one is what runs.

    Raises TypeError for what `jit` has not made.
    """
    return _state(jf).history.traces("computation")


def last_prologue_traces(jf: Any) -> list[Trace]:
    """The prologue after each pass, oldest first."""
    return _state(jf).history.traces("prologue")


def last_backward_traces(jf: Any) -> list[Trace]:
    """The backward after each pass that has one, oldest first."""
    return _state(jf).history.traces("backward")


def last_epilogue_traces(jf: Any) -> list[Trace]:
    """The epilogue after each pass that has one, oldest first."""
    return _state(jf).history.traces("epilogue")


def last_report(jf: Any) -> Report:
    """What each pass of the latest call's specialisation did and cost; prints as a table."""
    return Report(map(PassReport.of, _state(jf).history.steps))


def cache_info(jf: Any) -> CacheInfo:
    """Hits, misses and entries of a jitted function."""
    return _state(jf).cache_info
