"""A Sphinx extension: our docstrings, which are plain text for people, as napoleon and reStructuredText want them.

`name: what it is` lines become a list of parameters, indented programs after a colon become blocks of code, and what
reStructuredText would take for markup outside of `code` is escaped. A parameter that is described and does not exist is a
warning.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import tracemill

logger = logging.getLogger(__name__)

PARAMETERS, ATTRIBUTES = "Args:", "Fields:"
DESCRIBED = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<text>\S.*)")
_made: dict[str, list[str]] = {}
ERRORS = "|".join(name for name in tracemill.__all__ if name.endswith(("Error", "Warning")))
MARKUP = re.compile(rf"(`[^`]*`)|\b({ERRORS})\b|([*|\\]|_(?!\w))")


def process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Rewrites a docstring in place."""
    if what in ("function", "method"):
        known, head = _parameters(thing), PARAMETERS
    elif what in ("class", "exception"):
        known, head = _attributes(thing), ATTRIBUTES
    else:
        known, head = set(), ""
    lines[:] = [*_rewritten(lines, known, head, name), ""]
    _made[name] = lines.copy()


def keep_sentences(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Undoes what napoleon does to properties and attributes: it takes what stands before a colon for a type."""
    if what in ("attribute", "property"):
        lines[:] = _made[name]


def _rewritten(lines: list[str], known: set[str], head: str, where: str) -> Iterator[str]:
    """The lines, those that describe a parameter indented under `head`."""
    inside = example = False
    for line in lines:
        example = bool(line) and (example or line.startswith((">>>", "...")))
        if example or line.startswith("    "):
            yield f"        {_escaped(line.strip())}" if inside and not example else line
            continue
        described = DESCRIBED.fullmatch(line)
        names = described["names"].split(", ") if described else []
        if described and known.intersection(names):
            for name in set(names) - known:
                logger.warning("docstring of %s describes %r, which it does not have", where, name)
            if not inside:
                yield from ("", head)
            inside = True
            shown = names if head == PARAMETERS else [described["names"]]
            yield from (f"    {name}: {_escaped(described['text'])}" for name in shown)
        else:
            inside = inside and bool(line)
            text = _escaped(line)
            yield f"        {text}" if inside else re.sub(r":$", "::", text)


def _escaped(text: str) -> str:
    """A line without markup but `code`, and links to the errors that it names."""

    def rewritten(match: re.Match[str]) -> str:
        code, error, special = match.groups()
        return code or (f":py:exc:`{error} <tracemill.{error}>`" if error else f"\\{special}")

    return MARKUP.sub(rewritten, text)


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _attributes(cls: type) -> set[str]:
    names = {name for base in cls.__mro__ for name in (*vars(base), *_annotations(base))}
    try:
        return names | _parameters(cls)
    except ValueError:
        return names


def _annotations(cls: type) -> dict[str, Any]:
    return vars(cls).get("__annotations__", {})


def skip_aliases(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out the fields of named tuples: the docstring of the class says what they are."""
    return True if (inspect.getdoc(thing) or "").startswith("Alias for field number") else None


def shorten(
    app: Sphinx,
    what: str,
    name: str,
    thing: Any,
    options: Any,
    signature: str | None,
    given: str | None,
) -> tuple[str | None, str | None]:
    """Writes the defaults of a dataclass so that Sphinx can read the signature."""
    return signature and signature.replace("<factory>", "..."), given


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx; napoleon, at priority 500, comes between."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-docstring", keep_sentences, priority=600)
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("autodoc-process-signature", shorten)
    app.config["napoleon_custom_sections"] = [(ATTRIBUTES.rstrip(":"), "params_style")]
    return {"parallel_read_safe": True}
