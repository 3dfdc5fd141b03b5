"""A Sphinx extension: names in code spans exist, and every public name is in the reference.

`tm.jit` on a page becomes a link to the reference. So do `trace.text()` and others that are written with the customary name
of an object. A name that does not exist is a warning, and warnings are errors.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import tracemill
from tracemill import BoundSymbol, PassContext, Symbol, Trace

logger = logging.getLogger(__name__)

# What pages call an object, the name in the reference of what it is, and one of its kind.
OBJECTS: dict[str, tuple[str, Any]] = {
    "tm": ("tracemill", tracemill),
    "tracemill": ("tracemill", tracemill),
    "trace": ("tracemill.Trace", Trace()),
    "bsym": ("tracemill.BoundSymbol", BoundSymbol(Symbol("example"))),
    "symbol": ("tracemill.Symbol", Symbol("example")),
    "context": ("tracemill.PassContext", PassContext(call=None)),  # type: ignore[arg-type]
}
NAMES = re.compile(rf"(?<![\w./-])({'|'.join(OBJECTS)})((?:\.[A-Za-z_]\w*)+)")


def check(app: Sphinx, doctree: nodes.document) -> None:
    """Looks at every code span of a page."""
    for span in list(doctree.findall(nodes.literal)):
        if isinstance(span.parent, (nodes.reference, pending_xref)):
            continue
        targets = [_target(match[1], match[2], span) for match in NAMES.finditer(span.astext())]
        if targets and targets[0]:
            _link(span, targets[0], app.env.docname)


def _target(base: str, path: str, span: nodes.literal) -> str:
    """The name in the reference; empty, after a warning, when there is no such thing."""
    target, found = OBJECTS[base]
    for name in path.split(".")[1:]:
        try:
            found = _attribute(found, name)
        except AttributeError:
            logger.warning("there is no %s%s", base, path, location=span)
            return ""
    return target + path


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name)
    except AttributeError:
        module = getattr(thing, "__spec__", None)
        if module is None:
            raise
    try:
        return importlib.import_module(f"{thing.__name__}.{name}")
    except ImportError as error:
        raise AttributeError(name) from error


def _link(span: nodes.literal, target: str, page: str) -> None:
    reference = pending_xref(
        "", refdomain="py", reftype="obj", reftarget=target, refdoc=page, refwarn=False
    )
    span.replace_self(reference)
    reference += span


def complete(app: Sphinx, env: BuildEnvironment) -> None:
    """Looks for public names that the reference lacks."""
    documented = set(env.get_domain("py").data["objects"])
    for name in _public():
        if name not in documented:
            logger.warning("%s is public and not in the reference", name)


def _public() -> Iterator[str]:
    for name in tracemill.__all__:
        yield f"tracemill.{name}"
    for module in ("passes", "printers", "executors"):
        yield from (f"tracemill.{module}.{name}" for name in ("get", "names"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", check)
    app.connect("env-check-consistency", complete)
    return {"parallel_read_safe": True}
