"""Optimisers: the numbers that `torch.optim` computes from its state stay tensors of one element.

A step count that were read as a Python number would be another at each call, and so would the program. So would a learning
rate, which schedules change. Before, in Adam:

    step = step_t.item()
    bias_correction1 = 1 - beta1**step

After, in the precision of Python's numbers:

    t0 = torch.Tensor.double(step)
    t1 = torch.Tensor.__rpow__(t0, 0.9)
    t2 = torch.Tensor.__rsub__(t1, 1)
"""

from __future__ import annotations

import builtins
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.passes.interpretation.location import is_own
from tracemill.passes.interpretation.replacements.replacement import standing_in

T: Any = torch.Tensor
_FOLDER = os.path.join(os.path.dirname(str(torch.optim.__file__)), "")
_MODULES = [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]


class Recording(Protocol):
    """What these need of the interpreter."""

    def record(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call, and returns what it returns, with stand-ins for tensors."""
        ...

    def lift(self, tensor: torch.Tensor) -> Any:
        """The stand-in of a tensor."""
        ...

    rates: dict[int, tuple[dict[str, Any], torch.Tensor]]

    def at(self) -> str:
        """The user's line, for errors."""
        ...


def _is_asking() -> bool:
    """Whether a call that tracemill answers is torch.optim's."""
    frame = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_FOLDER)


def _number(recording: Recording, tensor: Any) -> Any:
    """The value of a tensor as a tensor of Python's precision, which nobody writes to."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    as_it_is = tensor.dtype is torch.float64 or not tensor.dtype.is_floating_point
    return recording.record(T.clone if as_it_is else T.double, (tensor,), {})


def item(recording: Recording, tensor: torch.Tensor) -> Any:
    """`tensor.item()`."""
    return _number(recording, tensor) if _is_asking() else recording.record(T.item, (tensor,), {})


def refuse_values(recording: Recording, name: str) -> None:
    """Refuses an optimiser that goes by what tensors hold otherwise, as LBFGS does in its line search."""
    if name != "__bool__" and _is_asking():
        raise UnsupportedError(
            f"the optimiser's step{recording.at()} goes by the values of tensors ({name}), which are others at each call; "
            "call it outside of the jitted function"
        )


def _scheduled(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for an optimiser's function: it gets the learning rate of a group, if a float, as a tensor."""

    def step(recording: Recording, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        group, rate = sys._getframe(2).f_locals.get("group"), kwargs.get("lr")
        others = kwargs.get("foreach"), kwargs.get("fused"), kwargs.get("differentiable")
        on_the_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
        if type(rate) is float and type(group) is dict and group.get("lr") is rate:
            if not any(others) and (on_the_cpu or kwargs.get("foreach") is False):
                kwargs["lr"] = _rate(recording, group, rate)
        return original(parameters, *args, **kwargs)

    return standing_in(original, step)


def _rate(recording: Recording, group: dict[str, Any], rate: float) -> Any:
    known = recording.rates.get(id(group))
    if known is None:
        with internals.DisableTorchFunction(), internals.no_user_modes():
            known = recording.rates[id(group)] = (group, prims.as_tensor(rate))
    return recording.lift(known[1])


def _choosing(name: str) -> Callable[..., Any]:
    """What stands for `max` or `min` of numbers, some of them tensors, as Python has it for NaN too."""
    original = getattr(builtins, name)
    is_better = operator.gt if name == "max" else operator.lt

    def chosen(_recording: Any, *values: Any) -> Any:
        if not any(isinstance(value, torch.Tensor) for value in values):
            return original(*values)
        best, *others = values
        for other in others:
            best = torch.where(is_better(other, best), other, best)
        return best

    return standing_in(original, chosen)


_SCHEDULED = ("sgd", "adam", "adadelta", "adagrad", "adamax", "nadam", "radam", "rmsprop")
"""The functions of the optimisers that look at the learning rate nowhere else."""

REPLACED: tuple[tuple[Any, str, Any], ...] = (
    *(
        (
            sys.modules[f"torch.optim.{name}"],
            name,
            _scheduled(getattr(sys.modules[f"torch.optim.{name}"], name)),
        )
        for name in _SCHEDULED
    ),
    *(
        (module, "_get_value", standing_in(module._get_value, _number))
        for module in _MODULES
        if hasattr(module, "_get_value")
    ),
    *(
        (sys.modules[f"torch.optim.{module}"], name, _choosing(name))
        for module in ("asgd", "_adafactor")
        for name in ("max", "min")
    ),
)
"""What stands where optimisers look for these while a program is interpreted."""
