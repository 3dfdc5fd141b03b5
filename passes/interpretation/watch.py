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
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy
import torch

from tracemill.passes.interpretation.location import is_library

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
_BY_NAME = {"getattr": 2, "hasattr": 2, "setattr": 3, "delattr": 2}
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_GLOBAL_OPCODES = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
)
_WHOLE_OBJECTS = frozenset({"__dict__", "vars", "dir", "attrgetter", "__getattribute__"})

First = Callable[[CodeType, FrameType], None]
"""Called with the user's code before it runs for the first time, and its frame."""


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


class Watch:
    """Collects the code that runs in this thread inside the `with` block.

    codes: the user's code objects, in order of their first run.
    names: what they mention: attributes, globals and strings, those of torch.nn's modules and the like included.
    library_names: those that code of torch.nn's modules and the like mentions.
    whole: whether some code asks for attributes by names that it does not spell out.
    """

    def __init__(self, first: First, edges: Edges | None = None) -> None:
        self.codes: list[CodeType] = []
        self.names: set[str] = set()
        self.library_names: set[str] = set()
        self.whole = False
        self._first = first
        self._edges = edges
        self._seen: dict[int, CodeType] = {}
        self._previous: Any = None

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
        if callable(self._previous):
            self._previous(frame, event, arg)

    def _meet(self, code: CodeType, frame: FrameType) -> None:
        file = code.co_filename
        if file == "<string>":
            file = _maker_of(frame)
        if is_watched(file):
            if is_collecting(frame):
                del self._seen[id(code)]
                return
            self.codes.append(code)
            self.names.update(mentioned(code))
            self.whole = self.whole or asks_by_name(code)
            self._first(code, frame)
        elif file.startswith(_OF_USERS_STATE):
            names = set(mentioned(code))
            self.names |= names
            self.library_names |= names
        elif file in _GENERIC:
            caller = frame.f_back
            if caller is not None and is_watched(caller.f_code.co_filename):
                self.whole = True
            else:  # for us or for torch; the user's own call may come later
                del self._seen[id(code)]


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
    """The names that code loads or stores as globals, nested functions included.

    Read off the bytes: making `dis`'s instructions takes a tenth of a small model's first call.
    """
    for inner in inner_codes(code):
        if inner.co_names:
            argument = 0
            for opcode, byte in zip(inner.co_code[::2], inner.co_code[1::2], strict=True):
                argument = argument << 8 | byte
                if opcode == dis.EXTENDED_ARG:
                    continue
                if opcode in _GLOBAL_OPCODES:
                    # The lowest bit of LOAD_GLOBAL's argument says whether a NULL is pushed as well.
                    yield inner.co_names[argument >> 1 if opcode == _LOAD_GLOBAL else argument]
                argument = 0


def asks_by_name(code: CodeType) -> bool:
    """Whether code reaches for attributes by names that it does not spell out, such as `getattr(self, name)`."""
    for inner in inner_codes(code):
        if not _WHOLE_OBJECTS.isdisjoint(inner.co_names):
            return True
        if not _BY_NAME.keys().isdisjoint(inner.co_names) and _name_is_computed(inner):
            return True
    return False


def _name_is_computed(code: CodeType) -> bool:
    """Whether the second argument of some call of `getattr` and its kind is no constant."""
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        if instruction.argval in _BY_NAME and instruction.opname.startswith("LOAD_"):
            second = _second_argument(instructions, position + 1)
            if second is None or second.opname != "LOAD_CONST":
                return True
    return False


def _second_argument(instructions: list[dis.Instruction], start: int) -> dis.Instruction | None:
    """The only instruction of a call's second argument; None where it has more."""
    depth, begun = 0, None
    for index in range(start, len(instructions)):
        instruction = instructions[index]
        if instruction.opname in ("PRECALL", "CALL", "CALL_FUNCTION_EX") and depth >= 2:
            return begun
        if depth == 1 and begun is None and instruction.opname not in ("CACHE", "NOP", "LOAD_ATTR"):
            if dis.stack_effect(instruction.opcode, instruction.arg, jump=False) == 1:
                following = instructions[index + 1] if index + 1 < len(instructions) else None
                if following is not None and _starts_or_calls(following):
                    begun = instruction
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if begun is not None and begun is not instruction and depth <= 2:
            return None  # it was the beginning of an expression
    return begun


def _starts_or_calls(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith(("LOAD_", "PRECALL", "CALL", "KW_NAMES", "PUSH_NULL"))
