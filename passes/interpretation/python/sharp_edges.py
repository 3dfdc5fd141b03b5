"""Sharp edges: calls whose results no check can tell, such as the time, or whose effects happen while tracing only.

What such a call gave while the program was traced is a constant of the program; what it printed is not printed again.
"""

from __future__ import annotations

import abc as abc_module
import io
import logging
import os
import pickle
import random
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections import abc
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import numpy

from tracemill.compiler.errors import SharpEdgeError, SharpEdgeWarning, UnsupportedError
from tracemill.compiler.symbol import Source
from tracemill.compiler.torch_internals import torch_function_enabled
from tracemill.passes.interpretation.python import asked_names
from tracemill.passes.interpretation.python.conditions import Named, StateCheck
from tracemill.passes.interpretation.python.printing import STANDING_IN, paper, silent
from tracemill.passes.interpretation.python.python_numbers import SPOKEN_FOR
from tracemill.passes.interpretation.python.read_settings import READERS, ReadSettings
from tracemill.passes.interpretation.python.watch import is_beneath, is_collecting, is_watched
from tracemill.passes.interpretation.replacements.replacement import standing_in
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation, refusal

_FUNCTIONS: dict[Any, str] = {
    print: "print",
    sys.getrefcount: "sys.getrefcount",
    sys.setrecursionlimit: "sys.setrecursionlimit",
    sys.setswitchinterval: "sys.setswitchinterval",
    input: "input",
    open: "open",
    warnings.warn: "warnings.warn",
    random.random: "random.random",
    random.getrandbits: "random.getrandbits",
    **{
        getattr(module, name): f"{module.__name__}.{name}"
        for module, names in (
            (time, "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time"),
            (time, "process_time_ns thread_time thread_time_ns localtime gmtime ctime asctime"),
            (time, "strftime clock_gettime sleep"),
            (os, "urandom times stat lstat listdir scandir open read write remove chdir umask"),
            (os, "unlink rename mkdir rmdir system putenv unsetenv getloadavg"),
        )
        for name in names.split()
        if hasattr(module, name)  # Windows has fewer
    },
}

_NUMPYS = [
    name
    for name in dir(numpy.random)
    if name == "seed"
    or getattr(getattr(numpy.random, name), "__self__", None) is numpy.random.mtrand._rand
]
"""The functions of numpy.random that draw from numpy's own generator, which profile hooks are not told of."""

_MADE = "a tensor of another class is made of a tensor's memory"
_UNSEEN = {
    "_use_count": ("a tensor is swapped for another one", "use copy_, or names of their own"),
    "_make_subclass": (_MADE, "make it outside of the program"),
    "as_subclass": (_MADE, "make it outside of the program"),
}
"""Methods of tensors that function modes do not see, each with what it is about, and what to do instead."""

_CLOCKS = ("now", "utcnow", "today")
_STREAMS = ("write", "writelines", "read", "readline", "readlines")
_TELLING = (
    sys.getrecursionlimit,
    sys.getswitchinterval,
    threading.get_ident,
    os.getpid,
    os.getcwd,
    os.cpu_count,
)
"""Functions that tell the same until somebody changes it, so that a check can ask them again."""

_TOLD = frozenset(function.__name__ for function in _TELLING)
_NAMES = frozenset(function.__name__ for function in _FUNCTIONS) | {
    *_CLOCKS,
    *_STREAMS,
    *_UNSEEN,
    "fork_exec",
}
_CODES: dict[CodeType, str] = {
    os._Environ.__setitem__.__code__: "os.environ",
    os._Environ.__delitem__.__code__: "os.environ",
    os._Environ.__iter__.__code__: "os.environ",
    uuid.uuid1.__code__: "uuid.uuid1",
    threading.Thread.start.__code__: "threading.Thread.start",
}
_READ = os._Environ.__getitem__.__code__
_SEED = random.Random.seed.__code__
_ENABLED = logging.Logger.isEnabledFor.__code__
_ABSTRACT = frozenset(
    (abc_module.ABCMeta.__instancecheck__.__code__, abc_module.ABCMeta.__subclasscheck__.__code__)
)
_UNASKED = (
    "<frozen importlib",
    *(
        os.path.join(os.path.dirname(os.__file__), name)
        for name in ("warnings.py", "logging", "importlib", "linecache.py", "inspect.py")
    ),
)
"""What looks at files for its own sake: imports, and texts for messages."""

_CANNOT_TELL = (
    "no check can tell what it gives or does at another call: the result of the first call is kept, and an effect "
    "happens at that call only. Make the call outside of the jitted function, or allow it by "
    'sharp_edges="allow"'
)


_edges: ContextVar[SharpEdges | None] = ContextVar("sharp_edges", default=None)


def _drawing(name: str) -> tuple[Any, str, Callable[..., Any]]:
    """What stands for one of numpy's functions: it is met before it draws."""
    original = getattr(numpy.random, name)

    def met(_recording: Any, *args: Any, **kwargs: Any) -> Any:
        edges = _edges.get()
        if edges is not None and edges.mode != "allow" and not silent.get():
            edges._meet(f"numpy.random.{name}", sys._getframe(1))
        return original(*args, **kwargs)

    _STANDING_IN.add(met.__code__)
    return numpy.random, name, standing_in(original, met)


_STANDING_IN = {*STANDING_IN, *SPOKEN_FOR, standing_in(print, print).__code__}
NUMPY: tuple[tuple[Any, str, Callable[..., Any]], ...] = tuple(map(_drawing, _NUMPYS))
"""What stands for numpy's functions while a program is traced."""


def _states() -> dict[str, bytes]:
    """The states of the generators that Python and numpy have themselves."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(numpy.random.get_state(legacy=False)),
    }


@dataclass
class SharpEdges:
    """What a traced program met; `mode` is "allow", "warn" or "error".

    met: what to warn of. variables, settings: those of the environment and of PyTorch that were read, which checks can
    tell, as also: loggers: which loggers were asked whether they take a level. classes: the abstract classes that were
    asked about a class. subclasses: the classes that were asked for their subclasses, which do not live on for it.
    told: functions that were asked, with what they told. printed: writes what the program printed, in order.

    Raises SharpEdgeError in the mode "error" before the call is made.
    """

    mode: str
    met: dict[str, None] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=_states)
    variables: dict[str, None] = field(default_factory=dict)
    settings: ReadSettings = field(default_factory=ReadSettings)
    loggers: dict[tuple[logging.Logger, int], None] = field(default_factory=dict)
    classes: dict[tuple[type, type], None] = field(default_factory=dict)
    subclasses: dict[type, list[Any]] = field(default_factory=dict)
    told: dict[Callable[[], Any], Any] = field(default_factory=dict)
    printed: list[Callable[[], object]] = field(default_factory=list)

    def c_call(self, function: Any, frame: FrameType) -> None:
        """A call of a function in C from `frame`."""
        called = function.__name__
        if called in READERS:
            self.settings.c_call(function, frame.f_code)
        elif called in asked_names.FORMATTING:
            if is_watched(frame.f_code.co_filename):
                asked_names.formatted(function.__self__)
        elif called == "__subclasses__":
            self._asked_subclasses(function.__self__, frame)
        elif called in _TOLD and function in _TELLING:
            if _users_frame(frame) is not None:
                self.told[function] = function()
        elif called in _NAMES:
            if called in _UNSEEN and torch_function_enabled():
                _refuse_unseen(called)
            name = _name_of(function)
            if name and self.mode != "allow":
                self._meet(name, frame)

    def call(self, code: CodeType, frame: FrameType) -> None:
        """A call of the standard library's Python code, whose frame it is."""
        if code is _READ:
            key = frame.f_locals["key"]
            if type(key) is str and _users_frame(frame) is not None:
                self.variables[key] = None
            return
        if code is asked_names.FIELD:
            asked_names.field(frame.f_locals["field_name"])
            return
        if code is _ENABLED and _users_frame(frame, logging=True) is not None:
            self.loggers[frame.f_locals["self"], frame.f_locals["level"]] = None
        elif code in _ABSTRACT and _users_frame(frame) is not None:
            if frame.f_back is None or frame.f_back.f_code not in _ABSTRACT:  # which asks others
                self._asked_class(*frame.f_locals.values())
        if code is _SEED and self.mode != "allow":
            if frame.f_locals["self"] is random._inst:
                self._meet("random.seed", frame)
            elif frame.f_locals["a"] is None:
                self._meet("random.Random without a seed", frame)
        name = _CODES.get(code)
        if name is not None and self.mode != "allow":
            self._meet(name, frame)

    def _asked_class(self, cls: type, asked: Any) -> None:
        kind = asked if isinstance(asked, type) else type(asked)
        if not issubclass(kind, TracedTensor):
            self.classes[cls, kind] = None

    def _asked_subclasses(self, cls: Any, frame: FrameType) -> None:
        if isinstance(cls, type) and _users_frame(frame) is not None:
            self.subclasses.setdefault(cls, list(map(weakref.ref, cls.__subclasses__())))

    @contextmanager
    def watching(self) -> abc.Generator[None]:
        """In the block, functions that profile hooks are not told of tell this."""
        token, papers = _edges.set(self), paper.set(self)
        try:
            yield
        finally:
            _edges.reset(token)
            paper.reset(papers)

    def written(self, name: str, frame: FrameType) -> bool:
        """Whether a function of that name that `frame` calls writes for the program."""
        if _users_frame(frame) is None:
            return False
        if self.mode != "allow":
            self._meet(name, frame)
        return True

    def _meet(self, name: str, frame: FrameType | None) -> None:
        frame = _users_frame(frame)
        if frame is None:
            return
        source = Source(frame.f_code.co_filename, frame.f_lineno)
        message = f"{name} is called at {source.file}:{source.line}: {source.text}\n{_CANNOT_TELL}"
        if self.mode == "error":
            raise refusal(SharpEdgeError(message))
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
        for (logger, level), _ in self.loggers.items():
            values = (Named(logger, "logger"), level, logger.isEnabledFor(level))
            condition, subject = (
                "{1}.isEnabledFor({2}) is {3}",
                f"the level of logger {logger.name}",
            )
            found.append(StateCheck(subject, None, condition, values))
        for (cls, kind), _ in self.classes.items():
            values = (Named(issubclass), Named(kind), Named(cls), issubclass(kind, cls))
            subject = f"whether {kind.__name__} is a {cls.__name__}"
            found.append(StateCheck(subject, None, "{1}({2}, {3}) is {4}", values))
        for function, answer in self.told.items():
            if function() != answer:  # the program set it, which is a sharp edge
                continue
            subject, values = (
                f"{function.__module__}.{function.__name__}",
                (Named(function), answer),
            )
            found.append(StateCheck(subject, None, "{1}() == {2}", values))
        for cls, known in self.subclasses.items():
            values = (Named(weakref.ref, "ref"), Named(cls), Named(known, "subclasses_as_traced"))
            condition = "list(map({1}, {2}.__subclasses__())) == {3}"
            found.append(StateCheck(f"the subclasses of {cls.__name__}", None, condition, values))
        return found

    def put_back_draws(self) -> None:
        """Takes back what was drawn of Python's and numpy's own numbers, by a program that is not compiled."""
        random.setstate(pickle.loads(self.states["random"]))
        numpy.random.set_state(pickle.loads(self.states["numpy.random"]))

    def report(self) -> None:
        """Warns of what was met, once for each line; some functions only tell afterwards that they drew or seeded."""
        changed = [name for name, state in _states().items() if state != self.states[name]]
        for name in changed if self.mode != "allow" else ():
            if any(f"{name}." in message for message in self.met):
                continue
            message = f"{name} is drawn from, or seeded, by the program. {_CANNOT_TELL}"
            if self.mode == "error":
                self.put_back_draws()
                raise SharpEdgeError(message)
            self.met[message] = None
        for message in self.met:
            warnings.warn(message, SharpEdgeWarning, stacklevel=2)


def _refuse_unseen(name: str) -> None:
    recording: Any = interpretation.get()
    what, instead = _UNSEEN[name]
    raise refusal(UnsupportedError(f"{what} by {name}{recording.at()}; {instead}"))


def _users_frame(frame: FrameType | None, *, logging: bool = False) -> FrameType | None:
    """The user's frame that calls the standard library; None where torch or we do, or for the sake of a warning."""
    while frame is not None and (
        is_beneath(frame.f_code.co_filename) or frame.f_code in _STANDING_IN
    ):
        if frame.f_code.co_filename.startswith(_UNASKED) and not logging:
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
    if name == "fork_exec":
        return "subprocess"
    if name in _STREAMS and isinstance(owner, io.IOBase) and not isinstance(owner, io.StringIO):
        return f"{type(owner).__name__}.{name}"
    return ""
