"""Watch: which of the user's code a traced program executes, and the names that this code mentions.

A profile hook sees each code object before it runs for the first time. Code of torch, of the standard library and of
tracemill is left out, but for the likes of torch.nn's modules: what their `forward` reads (`eps`, `p`, `training`) is the
user's.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
from collections.abc import Callable, Container, Iterator, Sized
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy
import torch

from tracemill.passes.interpretation.location import is_library
from tracemill.passes.interpretation.python.handlers import handles
from tracemill.passes.interpretation.python.identities import HASH, compares

_TORCH = os.path.dirname(str(torch.__file__))
_OF_USERS_STATE = tuple(
    os.path.join(_TORCH, name, "") for name in ("nn", "distributions", "ao", "optim")
)
"""The parts of torch whose objects hold what the user set: modules, parametrizations, distributions."""

_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_SITE = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "")
_NUMPY = os.path.join(os.path.dirname(numpy.__file__), "")
_TOOLS = tuple(  # what torch itself runs on, imported along with it
    os.path.join(_SITE, name)
    for name in (
        "typing_extensions",
        "_distutils_hack",
        "setuptools",
        "sympy",
        "mpmath",
        "networkx",
        "optree",
    )
)
_GENERIC = tuple(os.path.join(_STANDARD, name) for name in ("copy.py", "dataclasses.py"))
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_GLOBAL_OPCODES = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
)
_IMPORT = frozenset((dis.opmap["IMPORT_NAME"],))
_WHOLE_OBJECTS = frozenset(
    {"__dict__", "vars", "dir", "attrgetter", "methodcaller", "__getattribute__"}
)

First = Callable[[CodeType, FrameType, bool], None]
"""Called with the user's code before it runs for the first time, its frame, and the watch's `whole`."""


class Edges(Protocol):
    """Is told of calls that run no code of the user's."""

    def c_call(self, function: Any, frame: FrameType) -> None:
        """A call of a function in C from `frame`."""
        ...

    def call(self, code: CodeType, frame: FrameType) -> None:
        """A call of the standard library's Python code, whose frame it is."""
        ...


@lru_cache(maxsize=4096)
def is_standard(file: str) -> bool:
    """Whether a file is of Python's own library."""
    return (file.startswith(_STANDARD) and "site-packages" not in file) or file.startswith(
        "<frozen"
    )


@lru_cache(maxsize=4096)
def is_beneath(file: str) -> bool:
    """Whether a file is of a library that works for the user's code: Python's own or numpy."""
    return is_standard(file) or file.startswith(_NUMPY)


@lru_cache(maxsize=4096)
def is_watched(file: str) -> bool:
    """Whether a file's code is the user's: not torch's, Python's, numpy's or tracemill's."""
    if is_library(file) or file.startswith((_NUMPY, *_TOOLS)):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file


class Caching(Protocol):
    """Is told when the code of a cached function runs."""

    @property
    def codes(self) -> Container[int]:
        """What such functions run, by id."""
        ...

    @property
    def running(self) -> Sized:
        """Those that run."""
        ...

    def call(self, code: CodeType, frame: FrameType) -> None:
        """Its code is called."""
        ...

    def returns(self, frame: FrameType, result: Any) -> None:
        """A frame returns; whose, it has to find out."""
        ...


class Watch:
    """Collects the code that runs in this thread inside the `with` block.

    codes: the user's code objects, in order of their first run.
    names: what they mention: attributes, globals and strings, those of torch.nn's modules and the like included.
    unseen_names: those of them that code of torch.nn's modules and the like mentions, or that were asked for by `getattr`.
    whole: whether some code asks for attributes by names that it does not spell out.
    handles: whether some code goes on after an error. compares: whether some tells which tensors are one object.
    """

    def __init__(
        self,
        first: First,
        edges: Edges | None = None,
        caching: Caching | None = None,
    ) -> None:
        self.codes: list[CodeType] = []
        self.names: set[str] = set()
        self.unseen_names: set[str] = set()
        self.whole = False
        self.handles = self.compares = False
        self._first = first
        self._edges = edges
        self._caching = caching
        self._seen: dict[int, CodeType] = {}
        self._previous: Any = None
        self._imported: Any = None

    def __enter__(self) -> Watch:
        self._previous = sys.getprofile()
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *exc_info: object) -> None:
        previous = self._previous
        if previous is None or callable(previous):
            sys.setprofile(previous)
        else:  # a profiler in C, such as cProfile's: it cannot be chained, and starts again by itself
            sys.setprofile(None)
            previous.enable()

    def ran(self, code: CodeType) -> bool:
        """Whether code was executed, whoever's it is."""
        return id(code) in self._seen

    def has_handlers(self) -> bool:
        """Whether some code so far goes on after an error."""
        return self.handles

    def asked_for(self, name: str) -> None:
        """Takes in a name that code asked for and does not mention."""
        self.names.add(name)
        self.unseen_names.add(name)

    def _hook(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if self._edges is not None:
                self._edges.c_call(arg, frame)
        elif event == "call":
            code = frame.f_code
            if self._edges is not None and is_standard(code.co_filename):
                self._edges.call(code, frame)
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                self._meet(code, frame)
            if self._caching is not None and id(code) in self._caching.codes:
                self._caching.call(code, frame)
        elif event == "return" and self._caching is not None and self._caching.running:
            self._caching.returns(frame, arg)
        if callable(self._previous):
            self._previous(frame, event, arg)

    def _meet(self, code: CodeType, frame: FrameType) -> None:
        file = code.co_filename
        if file == "<string>":
            file = _maker_of(frame)
        if is_watched(file):
            if is_collecting(frame) or self._is_importing(code, frame):
                del self._seen[id(code)]
                return
            self.codes.append(code)
            self.names.update(mentioned(code))
            self.whole = self.whole or any(
                not _WHOLE_OBJECTS.isdisjoint(inner.co_names) for inner in inner_codes(code)
            )
            self.handles = self.handles or handles(code)
            self.compares = self.compares or compares(code)
            self._first(code, frame, self.whole)
        elif file.startswith(_OF_USERS_STATE):
            names = set(mentioned(code))
            self.names |= names
            self.unseen_names |= names
        elif file in _GENERIC or code is HASH:
            caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
            if code is HASH and not is_library(caller):
                self.compares = True
            elif code is not HASH and is_watched(caller):
                self.whole = True
            else:  # for us or for torch; the user's own call may come later
                del self._seen[id(code)]

    def _is_importing(self, code: CodeType, frame: FrameType) -> bool:
        """Whether a module is being imported: what that makes stays, and no later call makes it again."""
        if not _is_initializing(self._imported) and code.co_name == "<module>":
            self._imported = frame.f_globals.get("__spec__")
        return _is_initializing(self._imported)


def _is_initializing(spec: Any) -> bool:
    """Whether the code of a module with this `__spec__` is running, as Python itself asks where imports go in circles."""
    return getattr(spec, "_initializing", False)


def _maker_of(frame: FrameType) -> str:
    """The file of whoever made code by `exec` or `python -c`; Python's own library for a namedtuple's or dataclass's."""
    name = frame.f_globals.get("__name__", "__main__")
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None and (
        name == "__main__" or (module is None and not name.startswith("namedtuple_"))
    ):
        return "<string>"
    return file or "<frozen"


def is_collecting(frame: FrameType | None) -> bool:
    """Whether a frame runs for the garbage collector, which calls back at any time and is no part of the program."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while callbacks and frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from inner_codes(constant)


def mentioned(code: CodeType) -> Iterator[str]:
    """The attributes, globals and strings that code mentions, nested functions included."""
    for inner in inner_codes(code):
        yield from inner.co_names
        for constant in inner.co_consts:
            for item in constant if type(constant) in (tuple, frozenset) else (constant,):
                if type(item) is str:
                    yield item


def global_names(code: CodeType) -> Iterator[str]:
    """The names that code loads or stores as globals, nested functions included."""
    return _named_by(code, _GLOBAL_OPCODES)


def imported_names(code: CodeType) -> Iterator[str]:
    """The modules that code imports, nested functions included."""
    return _named_by(code, _IMPORT)


def _named_by(code: CodeType, opcodes: frozenset[int]) -> Iterator[str]:
    """The names that some instructions are about.

    Read off the bytes: making `dis`'s instructions takes a tenth of a small model's first call.
    """
    for inner in inner_codes(code):
        if inner.co_names:
            argument = 0
            for opcode, byte in zip(inner.co_code[::2], inner.co_code[1::2], strict=True):
                argument = argument << 8 | byte
                if opcode == dis.EXTENDED_ARG:
                    continue
                if opcode in opcodes:
                    # The lowest bit of LOAD_GLOBAL's argument says whether a NULL is pushed as well.
                    yield inner.co_names[argument >> 1 if opcode == _LOAD_GLOBAL else argument]
                argument = 0
