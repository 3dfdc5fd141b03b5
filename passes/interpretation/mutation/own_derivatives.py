"""Operations that only functional programs have, with derivatives that PyTorch does not know or knows otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol, symbol


class Hidden(Symbol):
    """`t2 = torch.Tensor.view_as(t1, t0)`: the value t1 where autograd goes on to see t0, which was written unseen."""

    def __init__(self) -> None:
        super().__init__("hidden_write", impl=torch.Tensor.view_as, vjp=self._vjp)

    path = None  # type: ignore[assignment]  # PyTorch would say that the gradient is the first argument's

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        value, before = map(writer.value, bsym.args)
        return [f"{writer.target(bsym.output)} = torch.Tensor.view_as({value}, {before})"]

    @staticmethod
    def _vjp(cotangents: Sequence[Any], output: Any, value: Any, before: Any) -> tuple[Any, Any]:
        return None, cotangents[0]


HIDDEN = Hidden()


class Copy(Symbol):
    """`torch.ops.aten.copy.default(t0, t1)`: the values of t1 in the shape, strides and dtype of t0.

    PyTorch knows its derivative only as `copy_`. written: whether it stands for `t0.copy_(t1)`, after which t0 has a
    gradient of zeros; else t0 only says what shape and strides to take.
    """

    def __init__(self, *, written: bool) -> None:
        self.written = written
        super().__init__(
            "torch.ops.aten.copy.default", impl=torch.ops.aten.copy.default, vjp=self._vjp
        )

    def _vjp(
        self, cotangents: Sequence[Any], output: Any, into: Any, value: Any
    ) -> tuple[Any, Any]:
        gradient = cotangents[0]
        none = torch.zeros_like(gradient) if self.written and into.requires_grad else None
        if not value.requires_grad:
            return none, None
        if (gradient.dtype, gradient.device) != (value.dtype, value.device):
            gradient = gradient.to(value.device, value.dtype)
        if gradient.sizes != value.sizes:
            gradient = gradient.sum_to_size(value.sizes)
        return none, gradient


COPY = Copy(written=True)
ARRANGE = Copy(written=False)

_ATEN: Any = torch.ops.aten
_DRAWS = (
    *(_ATEN.normal_functional, _ATEN.uniform, _ATEN.exponential, _ATEN.geometric),
    *(_ATEN.log_normal, _ATEN.cauchy, _ATEN.random, _ATEN.bernoulli),
)


def _drawing(op: Any) -> Symbol:
    """A tensor filled with random numbers, whatever it held: PyTorch knows its derivative only as `uniform_`."""
    return Symbol(str(symbol(op).name), impl=op, vjp=_no_influence)


def _no_influence(cotangents: Sequence[Any], output: Any, *args: Any, **kwargs: Any) -> Any:
    tensor, *others = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, TensorProxy))
    zeros: Any = torch.zeros_like
    rest = [zeros(other) if other.requires_grad else None for other in others]
    return (zeros(cotangents[0]) if tensor.requires_grad else None, *rest)


def bernoulli_in_order(
    tensor: torch.Tensor, p: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """What `tensor.bernoulli_(p)` draws, which goes by the order of memory; `bernoulli` goes by that of indices."""
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


class _BernoulliInOrder(Symbol):
    """`t1 = torch.empty_like(t0).bernoulli_(0.5, generator=None)`."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        tensor, *args = map(writer.value, bsym.args)
        args += [f"{name}={writer.value(value)}" for name, value in bsym.kwargs.items()]
        target = writer.target(bsym.output)
        return [f"{target} = torch.empty_like({tensor}).bernoulli_({', '.join(args)})"]


BERNOULLI_IN_ORDER = _BernoulliInOrder(
    "bernoulli_in_order", impl=bernoulli_in_order, vjp=_no_influence
)


class Written(Symbol):
    """An operation that was called in place, of which autograd then keeps the result in place of the argument."""

    def __init__(self, op: Any, derivative: Callable[..., Any]) -> None:
        self._derivative = derivative
        super().__init__(str(symbol(op).name), impl=op, vjp=self._vjp)

    def _vjp(self, cotangents: Sequence[Any], output: Any, _tensor: Any, *args: Any) -> Any:
        return self._derivative(cotangents[0], output, *args)


def _elu(gradient: Any, result: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return _ATEN.elu_backward(gradient, alpha, scale, input_scale, True, result)


def _celu(gradient: Any, result: Any, alpha: Any = 1.0) -> Any:
    return _ATEN.elu_backward(gradient, alpha, 1, 1.0 / alpha, True, result)


def _leaky_relu(gradient: Any, result: Any, negative_slope: Any = 0.01) -> Any:
    return _ATEN.leaky_relu_backward(gradient, result, negative_slope, True)


def _rrelu(
    cotangents: Sequence[Any],
    output: Any,
    _tensor: Any,
    _noise: Any,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    *_generator: Any,
) -> tuple[Any, None]:
    """PyTorch's own derivative reads the noise from before it is drawn."""
    if cotangents[0] is None:
        return None, None
    result, noise = output
    backward = _ATEN.rrelu_with_noise_backward
    return backward(cotangents[0], result, noise, lower, upper, training, True), None


def _as_strided_scatter(
    cotangents: Sequence[Any], output: Any, tensor: Any, part: Any, *where: Any
) -> tuple[Any, Any]:
    """PyTorch's own derivative is that of another operation: it keeps the written part, and not the rest."""
    gradient = cotangents[0]
    if gradient.stride() != output.stride():
        gradient = _ATEN.copy.default(output, gradient)
    of_part = torch.as_strided(gradient, *where)
    rest = torch.as_strided_scatter(gradient, torch.zeros_like(of_part), *where)
    return rest if tensor.requires_grad else None, of_part if part.requires_grad else None


class ComplexScatter(Symbol):
    """A part of a complex tensor replaced by other numbers: PyTorch has no derivative of that for complex numbers.

    taking: the call that takes that part of a tensor.
    """

    def __init__(self, op: Callable[..., Any], taking: Callable[..., Any]) -> None:
        self._taking = taking
        super().__init__(str(symbol(op).name), impl=op, vjp=self._vjp)

    def asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """`ask`, which says that gradients flow through where they do: PyTorch raises where it is asked."""

        def ask_without_grad(fn: Any, args: Any, kwargs: Any, make: Any) -> Any:
            with torch.no_grad():
                answer, made = ask(fn, args, kwargs, make)
            if not any(tensor.requires_grad for tensor in args[:2]):
                return answer, made
            meta = made.meta.replace(requires_grad=True, is_leaf=False)
            spec = NewTensor(meta, answer.output.index, answer.output.storage, answer.output.offset)
            followed = Answer(spec, answer.arity, body=answer.body, metas=answer.metas)
            return followed, made.changed(made.name, meta=meta)

        return ask_without_grad

    def _vjp(
        self, cotangents: Sequence[Any], output: Any, tensor: Any, part: Any, *where: Any
    ) -> Any:
        gradient = cotangents[0]
        of_part = self._taking(gradient, *where)
        rest = None
        if tensor.requires_grad:
            rest = self.impl(gradient, torch.zeros_like(of_part), *where)  # type: ignore[misc]
        return rest, of_part if part.requires_grad else None


_COMPLEX: dict[Any, Symbol] = {
    _ATEN.slice_scatter.default: ComplexScatter(torch.slice_scatter, _ATEN.slice.Tensor),
    _ATEN.select_scatter.default: ComplexScatter(torch.select_scatter, torch.select),
}

_OWN: dict[Any, Symbol] = {
    COPY.impl: COPY,
    **{
        op: Written(op, derivative)
        for op, derivative in (
            (_ATEN.elu.default, _elu),
            (_ATEN.celu.default, _celu),
            (_ATEN.leaky_relu.default, _leaky_relu),
        )
    },
    _ATEN.rrelu_with_noise_functional.default: Symbol(
        "torch.ops.aten.rrelu_with_noise_functional.default",
        impl=_ATEN.rrelu_with_noise_functional.default,
        vjp=_rrelu,
    ),
    _ATEN.as_strided_scatter.default: Symbol(
        "torch.as_strided_scatter",
        impl=torch.as_strided_scatter,
        vjp=_as_strided_scatter,
    ),
}


def own_symbol(op: Any, output: Any) -> Symbol | None:
    """The symbol of an operation, which gave `output`, that only this knows how to differentiate."""
    if op in _COMPLEX and output.is_complex():
        return _COMPLEX[op]
    if op in _OWN:
        return _OWN[op]
    return _drawing(op) if getattr(op, "overloadpacket", None) in _DRAWS else None
