"""Where in the user's code a call comes from: the line, and the path of the module whose forward runs."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from types import FrameType

import optree
import torch

from tracemill.compiler.symbol import Source

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARY_FILES = (
    "<frozen",
    "<tracemill",
    *(os.path.join(os.path.dirname(str(m.__file__)), "") for m in (torch, optree)),
    os.path.join(_PACKAGE, ""),
)
_MODULE_CALL = torch.nn.Module._call_impl.__code__


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to torch, optree or tracemill, or has no source at all."""
    return file.startswith(_LIBRARY_FILES)


def is_own(file: str) -> bool:
    """Whether a file belongs to tracemill."""
    return file.startswith(_PACKAGE)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from `frame` outwards, that runs the user's code."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


class Locator:
    """Finds the source and the module path of the call under way."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self._paths = (
            {id(module): name for name, module in root.named_modules()} if root is not None else {}
        )
        self._sources: dict[tuple[str, int], Source] = {}
        self._stop = sys._getframe(1).f_code  # not the frame, which would keep its locals alive

    def here(self, depth: int = 1) -> tuple[Source | None, str]:
        """The user's line and the module path of the frame `depth` calls up."""
        frame: FrameType | None = sys._getframe(depth)
        source = None
        while frame is not None and frame.f_code is not self._stop:
            code = frame.f_code
            if source is None and not is_library(code.co_filename):
                source = self._source(code.co_filename, frame.f_lineno)
            if code is _MODULE_CALL:
                path = self._paths.get(id(frame.f_locals["self"]))
                if path is not None:
                    return source or self._line_above(frame), path
            frame = frame.f_back
        return source, ""

    def _source(self, file: str, line: int) -> Source:
        key = (file, line)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = Source(file, line)
        return source

    def _line_above(self, frame: FrameType) -> Source | None:
        outer = user_frame(frame)
        return None if outer is None else self._source(outer.f_code.co_filename, outer.f_lineno)
