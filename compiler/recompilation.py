"""Recompilation: says what makes one call after another compile a program of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

REPEATED_CHECKS = 2
"""From how many compilations in a row for one and the same check on it is named."""
REPEATED_ARGUMENTS = 8
"""From how many compilations in a row for another kind of one and the same argument on it is named."""


class Recompilations:
    """The latest compilations of one callable, called `name`; warns, once for each cause.

    limit: for how many calls in a row that failed one and the same check programs are made.
    """

    def __init__(self, name: str, parameters: Sequence[str], limit: int) -> None:
        self._name = name
        self._limit = limit
        self._hits = self._streak = 0
        self._parameters = tuple(parameters)
        self._kind: tuple[Any, ...] | None = None
        self._cause = ""
        self._times = 0
        self._warned: set[str] = set()

    def failed_check(self, check: str, hits: int) -> bool:
        """A call finds no program, since the newest for calls of its kind failed on this check; whether to make another.

        hits: how many calls found one so far.
        """
        times = self._repeated(f"check {check}")
        self._streak = self._streak + 1 if times > 1 and hits == self._hits else 1
        self._hits = hits
        if self._streak > self._limit:
            self._cause = f"limit {check}"
            self._warn(
                f"is not compiled any more where a check fails that failed at {self._limit} calls in a row: {check}. Such "
                "calls run in eager; keep what changes at each call in a tensor, or allow more programs by "
                f"jit(..., paths={2 * self._limit})"
            )
            self._cause = f"check {check}"
            return False
        if times >= REPEATED_CHECKS:
            self._warn(
                f"is compiled again, for a check that failed at several calls in a row: {check}. If it changes at each "
                "call, keep it in a tensor"
            )
        return True

    def new_kind(self, kind: tuple[Any, ...]) -> None:
        """A call is compiled since there was none of its kind: what tells calls apart by each parameter's argument."""
        before, self._kind = self._kind, kind
        if before is None:
            return
        changed = [
            name
            for name, one, other in zip(self._parameters, before, kind, strict=True)
            if one != other
        ]
        if (
            self._repeated(f"argument {', '.join(changed)}") >= REPEATED_ARGUMENTS
            and len(changed) == 1
        ):
            self._warn(
                f"is compiled again, for another kind of argument {changed[0]!r} at several calls in a row. Pass numbers that "
                'change at each call in tensors; cache="symbolic values" makes one program for many shapes'
            )

    def _repeated(self, cause: str) -> int:
        self._times = self._times + 1 if cause == self._cause else 1
        self._cause = cause
        return self._times

    def _warn(self, why: str) -> None:
        if self._cause not in self._warned:
            self._warned.add(self._cause)
            warnings.warn(f"{self._name} {why}", stacklevel=6)
