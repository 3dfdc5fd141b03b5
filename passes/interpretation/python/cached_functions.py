"""Cached functions: what `functools.lru_cache` fills while a program is traced.

    @functools.lru_cache
    def table(size):
      return torch.arange(size)

Such a function runs once for its arguments, at the trace, so it runs as in eager: the cache keeps real tensors, and the
program has them as it has those that were there before. A stand-in must never get into a cache, from where nobody can take
it: a function that is asked about a tensor of the call is refused.
"""

from __future__ import annotations

from contextvars import Token
from types import CodeType, FrameType
from typing import Any

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.symbol import Source
from tracemill.passes.interpretation.outputs import holds_stand_ins
from tracemill.passes.interpretation.python.places import own_name
from tracemill.passes.interpretation.python.python_numbers import holds_symbolic
from tracemill.passes.interpretation.python.snapshot import Snapshot
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation, refusal


class CachedFunctions:
    """Runs the cached functions that a snapshot knows outside of the trace, told of each call and return of their code."""

    def __init__(self, snapshot: Snapshot, interpreter: Any) -> None:
        self._snapshot = snapshot
        self._interpreter = interpreter
        self.codes = snapshot.cached
        self._asked = dict[int, int]()
        self.running: list[tuple[FrameType, Any, Token[Any] | None]] = []

    def call(self, code: CodeType, frame: FrameType) -> None:
        """The code of a cached function is called: by its cache, if that missed."""
        for function in self.codes[id(code)]:
            misses = function.cache_info().misses
            known = self._asked.get(id(function), self._snapshot.caches[id(function)].misses)
            if misses != known:
                self._asked[id(function)] = misses
                self._missed(function, frame)

    def _missed(self, function: Any, frame: FrameType) -> None:
        given = _arguments(frame)
        if any(isinstance(value, TracedTensor) for value in given):
            raise refusal(
                UnsupportedError(
                    f"{own_name(function)}, whose results functools.lru_cache keeps, is called on a tensor of the call"
                    f"{_at(frame)}; what it keeps for one call's tensor, no other call finds: call "
                    f"{own_name(function)}.__wrapped__, or keep results by what tells tensors apart, such as a shape"
                )
            )
        token = None
        if not any(map(holds_symbolic, given)) and not self._has_written():
            token = interpretation.set(None)
        self.running.append((frame, function, token))

    def _has_written(self) -> bool:
        """Whether the trace wrote to a tensor that is there, which holds what it did all the same."""
        own = {proxy.storage for proxy, _ in self._interpreter.lifted.values()}
        return any(
            tensor.storage in own
            for line in self._interpreter.bound_symbols
            if line.answer is not None and line.mutates
            for tensor in tensor_arguments(line.args, line.kwargs)
        )

    def returns(self, frame: FrameType, result: Any) -> None:
        """A function returns to its cache, if that called it."""
        if self.running[-1][0] is not frame:
            return
        _, function, token = self.running.pop()
        if token is not None:
            interpretation.reset(token)
            self._snapshot.visit(result)
        elif holds_stand_ins(result):
            raise refusal(
                UnsupportedError(
                    f"{own_name(function)}, whose results functools.lru_cache keeps, makes tensors"
                    f"{_at(frame)} of a size that differs from call to call, or after the program wrote to a "
                    f"tensor; call it on int(size), or once before the jitted function"
                )
            )


def _at(frame: FrameType) -> str:
    """The line that calls a function from outside of its cache."""
    caller = frame.f_back
    source = None if caller is None else Source(caller.f_code.co_filename, caller.f_lineno)
    return "" if source is None else f" at {source.file}:{source.line}: {source.text}"


def _arguments(frame: FrameType) -> list[Any]:
    """What a function was called with, the items of tuples too."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    found = [frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals]
    return [item for value in found for item in (value if isinstance(value, tuple) else (value,))]
