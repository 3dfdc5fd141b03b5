"""Symbolic values: numbers of a trace that differ from call to call, and tensors whose sizes are such numbers.

A size is an `IntegerProxy`; arithmetic on sizes is an `Expression`, which prints inline: `i0 // 2`. What was true while
tracing stays at hand, as `value` and as the tensor's `meta`, for PyTorch's answers and for estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from tracemill.compiler.meta import Stride, hint
from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.torch_internals import dtype_abbrs


class Expression:
    """Arithmetic on numbers of a trace; equal ones compare equal.

    template: Python with a `{}` for each of `operands`, numbered. value: what it was while tracing.
    """

    __slots__ = ("operands", "template", "value")

    def __init__(self, template: str, operands: tuple[NumberProxy, ...], value: int) -> None:
        self.template = template
        self.operands = operands
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return self.template == other.template and self.operands == other.operands

    def __hash__(self) -> int:
        return hash((self.template, self.operands))

    def __str__(self) -> str:
        return self.template.format(*(operand.name for operand in self.operands))

    def __repr__(self) -> str:
        return f"<Expression {self}>"

    def function(self) -> Callable[..., int]:
        """The arithmetic as a function of its operands."""
        names = [f"v{index}" for index, _ in enumerate(self.operands)]
        made: Callable[..., int] = eval(
            f"lambda {', '.join(names)}: {self.template.format(*names)}"
        )
        return made

    def substitute(self, mapping: Mapping[Proxy, Any]) -> Any:
        """The same arithmetic on other numbers; what it was while tracing where they are given by value."""
        operands: list[Any] = [mapping.get(operand, operand) for operand in self.operands]
        if all(new is old for new, old in zip(operands, self.operands, strict=True)):
            return self
        if any(not isinstance(operand, Proxy) for operand in operands):
            return self.value
        return Expression(self.template, tuple(operands), self.value)


def while_tracing(value: Any) -> Any:
    """What a symbolic number was while tracing; any other value as it is."""
    if isinstance(value, Expression) or (
        isinstance(value, NumberProxy) and value.value is not None
    ):
        return value.value
    return value


class Layout(NamedTuple):
    """Shape, strides and storage offset of a tensor in elements, as ints and SymInts."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a fake tensor."""
        return cls(
            tuple(map(known, tensor.shape)),
            tuple(map(known, tensor.stride())),
            known(tensor.storage_offset()),
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        """All of it in a row."""
        return (*self.shape, *self.stride, self.offset)

    @property
    def is_symbolic(self) -> bool:
        """Whether any of it differs from call to call."""
        return any(type(part) is not int for part in self.parts)

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill their memory without gaps for every size, in whatever order of dimensions."""
        step: Any = 1
        pairs = zip(self.stride, self.shape, strict=True)
        for stride, size in sorted(pairs, key=lambda pair: (hint(pair[0]), hint(pair[1]))):
            if type(stride) is not type(step) or _expr(stride) != _expr(step):
                return False
            step = known(step * size)
        return True

    @property
    def key(self) -> Any:
        """What tells layouts apart."""
        return tuple(map(_expr, self.parts))


def _expr(size: Any) -> Any:
    return size.node.expr if type(size) is torch.SymInt else size


def known(value: Any) -> Any:
    """A size as an int where it can only be one."""
    if type(value) is not torch.SymInt:
        return value
    exact = value.node.maybe_as_int()
    return value if exact is None else exact


class Owner(Protocol):
    """The symbolic sizes of a trace, as its tensors know them."""

    def specialise(self, *values: Any) -> None:
        """Makes every size in some values one that each call must have."""
        ...


class SymbolicTensorProxy(TensorProxy):
    """A tensor whose sizes differ from call to call; `meta` is what it was while tracing.

    sizes: ints, IntegerProxies and Expressions. layout: the same and the strides, as PyTorch's symbolic numbers.
    owner: whose sizes these are. Whoever asks for `shape`, `stride` or `len` gets numbers, and the trace is then one for
    these.
    """

    __slots__ = ("_sizes", "layout", "owner")

    def __init__(
        self,
        name: str | None = None,
        *,
        layout: Layout,
        sizes: tuple[Any, ...],
        owner: Owner,
        **known: Any,
    ) -> None:
        super().__init__(name, **known)
        self.layout = layout
        self.owner = owner
        self._sizes = sizes

    @property
    def sizes(self) -> tuple[Any, ...]:
        return self._sizes

    @property
    def shape(self) -> torch.Size:
        self.owner.specialise(self)
        return super().shape

    @property
    def stride(self) -> Stride:
        self.owner.specialise(self)
        return super().stride

    @property
    def type_string(self) -> str:
        """Device, dtype and shape: `cpu f32[i0, 2*i1]`."""
        sizes = ", ".join(
            size.name if isinstance(size, Proxy) else str(size) for size in self.sizes
        )
        return f"{self.device} {dtype_abbrs[self.dtype]}[{sizes}]"


def layout_of(proxy: TensorProxy) -> Layout | None:
    """The layout of a tensor whose sizes are symbolic; None for any other."""
    return proxy.layout if type(proxy) is SymbolicTensorProxy else None


def is_symbolic(value: Any) -> bool:
    """Whether a value of a trace differs from call to call in size or, being a number, by itself."""
    return type(value) is SymbolicTensorProxy or isinstance(value, (Expression, NumberProxy))
