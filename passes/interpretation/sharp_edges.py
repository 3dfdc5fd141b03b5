"""Sharp edges: calls whose results no check can tell, such as the time, or whose effects happen while tracing only.

What such a call gave while the program was traced is a constant of the program; what it printed is not printed again.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pickle
import random
import time
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import numpy

from tracemill.compiler.errors import SharpEdgeError, SharpEdgeWarning
from tracemill.compiler.symbol import Source
from tracemill.passes.interpretation.conditions import Named, StateCheck
from tracemill.passes.interpretation.read_settings import READERS, ReadSettings
from tracemill.passes.interpretation.replacement import Replacement
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation
from tracemill.passes.interpretation.watch import is_collecting, is_standard, is_watched

_FUNCTIONS: dict[Any, str] = {
    print: "print",
    input: "input",
    open: "open",
    os.urandom: "os.urandom",
    os.getpid: "os.getpid",
    **{
        getattr(time, name): f"time.{name}"
        for name in (
            "time",
            "time_ns",
            "perf_counter",
            "perf_counter_ns",
            "monotonic",
            "monotonic_ns",
            "process_time",
            "localtime",
            "gmtime",
            "sleep",
        )
    },
    random.random: "random.random",
    random.getrandbits: "random.getrandbits",
}

_PRINT = print
silent: ContextVar[bool] = ContextVar("silent", default=False)
"""Whether what this thread prints at the moment is of a call that nobody made."""


@functools.wraps(print)
def _print_shown(*values: Any, **options: Any) -> None:
    """Stands for `print` while a program is traced: tensors are printed with what they hold at that call."""
    recording: Any = interpretation.get()
    if not silent.get():
        _PRINT(*(recording.shown(v) if type(v) is TracedTensor else v for v in values), **options)


PRINTING = Replacement(lambda: [(builtins, "print", _print_shown)])
"""`print` is stood in for."""


_CLOCKS = ("now", "utcnow", "today")
_STREAMS = ("write", "writelines", "read", "readline", "readlines")
_NAMES = frozenset(function.__name__ for function in _FUNCTIONS) | {*_CLOCKS, *_STREAMS}
_CODES: dict[CodeType, str] = {
    os._Environ.__setitem__.__code__: "os.environ",
    os._Environ.__iter__.__code__: "os.environ",
}
_STANDING_IN = {_print_shown.__code__}
_READ = os._Environ.__getitem__.__code__
_DIAGNOSTICS = tuple(
    os.path.join(os.path.dirname(os.__file__), name) for name in ("warnings.py", "logging")
)

_CANNOT_TELL = (
    "no check can tell what it gives or does at another call: the result of the first call is kept, and an effect "
    "happens at that call only. Make the call outside of the jitted function, or allow it by "
    'sharp_edges="allow"'
)


def _numpy_state() -> bytes:
    """The state of numpy's own generator."""
    return pickle.dumps(numpy.random.get_state(legacy=False))


@dataclass
class SharpEdges:
    """What a traced program met; `mode` is "allow", "warn" or "error".

    met: what to warn of. variables, settings: those of the environment and of PyTorch that were read, which checks can tell.

    Raises SharpEdgeError in the mode "error" before the call is made.
    """

    mode: str
    met: dict[str, None] = field(default_factory=dict)
    numpy_state: bytes = field(default_factory=_numpy_state)
    variables: dict[str, None] = field(default_factory=dict)
    settings: ReadSettings = field(default_factory=ReadSettings)

    def c_call(self, function: Any, frame: FrameType) -> None:
        """A call of a function in C from `frame`."""
        called = function.__name__
        if called in READERS:
            self.settings.c_call(function, frame.f_code)
        elif called in _NAMES and self.mode != "allow":
            name = _name_of(function)
            if name:
                self._meet(name, frame)

    def call(self, code: CodeType, frame: FrameType) -> None:
        """A call of the standard library's Python code, whose frame it is."""
        if code is _READ:
            if _users_frame(frame) is not None:
                self.variables[frame.f_locals["key"]] = None
            return
        name = _CODES.get(code)
        if name is not None and self.mode != "allow":
            self._meet(name, frame)

    def _meet(self, name: str, frame: FrameType | None) -> None:
        frame = _users_frame(frame)
        if frame is None:
            return
        source = Source(frame.f_code.co_filename, frame.f_lineno)
        message = f"{name} is called at {source.file}:{source.line}: {source.text}\n{_CANNOT_TELL}"
        if self.mode == "error":
            raise SharpEdgeError(message)
        self.met[message] = None

    def checks(self) -> list[StateCheck]:
        """The checks of the environment."""
        environment: Any = os.environ
        table = environment._data
        found: list[StateCheck] = []
        for name in self.variables:
            key = environment.encodekey(name)
            condition = "{1}.get({2}) == {3}"
            values = (Named(table, "environment"), key, table.get(key))
            found.append(StateCheck(f"environment: {name}", None, condition, values))
        return found

    def report(self) -> None:
        """Warns of what was met, once for each line; numpy's own generator only tells afterwards that it was drawn from."""
        if self.mode != "allow" and _numpy_state() != self.numpy_state:
            message = "numpy.random is drawn from by the program. " + _CANNOT_TELL
            if self.mode == "error":
                numpy.random.set_state(pickle.loads(self.numpy_state))
                raise SharpEdgeError(message)
            self.met[message] = None
        for message in self.met:
            warnings.warn(message, SharpEdgeWarning, stacklevel=2)


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """The user's frame that calls the standard library; None where torch or we do, or for the sake of a warning."""
    while frame is not None and (
        is_standard(frame.f_code.co_filename) or frame.f_code in _STANDING_IN
    ):
        if frame.f_code.co_filename.startswith(_DIAGNOSTICS):
            return None
        frame = frame.f_back
    if frame is None or not is_watched(frame.f_code.co_filename) or is_collecting(frame):
        return None
    return frame


def _name_of(function: Any) -> str:
    if type(function) is BuiltinFunctionType:
        known = _FUNCTIONS.get(function)
        if known is not None:
            return known
    owner = getattr(function, "__self__", None)
    name = function.__name__
    if name in _CLOCKS and getattr(owner, "__module__", "") == "datetime":
        return f"datetime.{name}"
    if name in _STREAMS and isinstance(owner, io.IOBase) and not isinstance(owner, io.StringIO):
        return f"{type(owner).__name__}.{name}"
    return ""
