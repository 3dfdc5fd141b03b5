"""A Sphinx extension: the directive `registered`, for the passes, printers or executors that come with tracemill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tracemill.compiler.ordering import passes_for
from tracemill.compiler.plugins import EXECUTORS, PRINTERS, Registered

ENTRY = """\
### {name}

```{{eval-rst}}
.. automodule:: {module}
   :no-members:
```
"""


class RegisteredDirective(SphinxDirective):
    """The module docstring of each of our passes, in the order in which they run, or of our printers or executors."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The sections."""
        items: dict[str, Iterable[Registered[Any]]] = {
            "passes": passes_for(),
            "printers": PRINTERS.registered().values(),
            "executors": EXECUTORS.registered().values(),
        }
        text = "\n".join(
            ENTRY.format(name=item.item.name, module=type(item.item).__module__)
            for item in items[self.arguments[0]]
            if item.is_ours
        )
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("registered", RegisteredDirective)
    return {"parallel_read_safe": True}
