"""Functions of TorchScript: what they do is recorded operation by operation, below autograd.

TorchScript differentiates a function that it has run before by itself, where nobody sees it: so its graph is run as
something new, without that.
"""

from __future__ import annotations

from collections import abc
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.passes.interpretation.replacements.replacement import standing_in

_Function: Any = torch.jit.ScriptFunction


def _called(_recording: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a TorchScript function in a program that is traced."""
    parameters = function.schema.arguments[len(args) :]
    if any(given not in [parameter.name for parameter in parameters] for given in kwargs):
        return _call(function, *args, **kwargs)  # which raises
    rest = [
        kwargs.get(parameter.name, parameter.default_value)
        for parameter in parameters
        if parameter.name in kwargs or parameter.has_default_value()
    ]
    if len(rest) < len(parameters):
        return _call(function, *args, **kwargs)
    new = internals.new_script_function(function.name, function.inlined_graph)
    with internals.optimized_execution(False):
        return _call(new, *args, *rest)


_call = _Function.__call__


def replaced() -> abc.Iterator[tuple[Any, str, Any]]:
    """What stands where PyTorch looks for these while a program is interpreted."""
    yield _Function, "__call__", standing_in(_call, _called)
