"""Answers: what PyTorch said about a call, its outputs, effects and body."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracemill.compiler.meta import Storage, TensorMeta
from tracemill.compiler.proxy import GeneratorProxy, TensorProxy
from tracemill.compiler.random_state import Generator
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.torch_internals import OpOverload
from tracemill.compiler.values import leaves, map_leaves


class Ref:
    """A tensor in a recorded body: the argument of that position, or a value made by the body after those.

    A leaf for every walk over structures.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.index == self.index

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"Ref({self.index})"


class BodyOperation(NamedTuple):
    """One ATen operation of a call, on refs."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class NewTensor:
    """An output that is a tensor of its own; a leaf for every walk over structures.

    index: its ref in the body, or -1.
    storage: ("argument", position) where it aliases an argument, else ("new", group).
    offset: where it begins in the storage, relative to the argument that it aliases.
    """

    __slots__ = ("index", "meta", "offset", "storage")

    def __init__(self, meta: TensorMeta, index: int, storage: tuple[str, int], offset: int) -> None:
        self.meta = meta
        self.index = index
        self.storage = storage
        self.offset = offset

    def known_as(self, meta: TensorMeta) -> NewTensor:
        """The same output with other metadata."""
        return NewTensor(meta, self.index, self.storage, self.offset)


GENERATOR = object()
"""Stands in a body for the generator that the call was given."""


class SameTensor:
    """An output that is the argument of that position itself."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class Answer:
    """What PyTorch said about a call.

    output: its structure, with NewTensor, SameTensor and constants as leaves.
    mutated: positions of the tensor arguments that it writes to.
    changed: new metadata of arguments whose metadata it changes (`t_`, `squeeze_`).
    random: whether it draws random numbers. requires_grad: whether a tensor that it gives does.
    body: the ATen operations that it consists of. attends: whether one of them is a kernel of attention. asserts: whether
    one gives nothing, as `torch._assert_async` does.
    asked: the keys of the arguments that it is about.
    """

    __slots__ = (
        "__weakref__",
        "arity",
        "asked",
        "asserts",
        "attends",
        "body",
        "changed",
        "metas",
        "mutated",
        "output",
        "random",
        "requires_grad",
    )

    def __init__(
        self,
        output: Any,
        arity: int,
        mutated: tuple[int, ...] = (),
        changed: Mapping[int, TensorMeta] | None = None,
        random: bool = False,
        body: Sequence[BodyOperation] = (),
        metas: Mapping[int, TensorMeta] | None = None,
    ) -> None:
        self.output = output
        self.arity = arity
        self.mutated = mutated
        self.changed = changed or {}
        self.random = random
        self.requires_grad = any(
            type(spec) is NewTensor and spec.meta.requires_grad for spec in leaves(output)
        )
        self.body = tuple(body)
        self.attends = any("attention" in operation.fn._schema.name for operation in body)
        self.asserts = not mutated and any(
            not operation.fn._schema.returns and not operation.fn._schema.is_mutable
            for operation in body
        )
        self.metas = metas or {}
        self.asked: Any = None

    def with_output(self, output: Any) -> Answer:
        """The same answer with another output."""
        made = copy.copy(self)
        made.output = output
        return made

    @property
    def is_query(self) -> bool:
        """Whether the call only looked at metadata: no tensor came out, and nothing was done."""
        return (
            not self.mutated
            and not self.random
            and not self.asserts
            and not any(map(_is_tensor_spec, leaves(self.output)))
        )

    def instantiate(
        self, tensors: Sequence[TensorProxy], make: Callable[[NewTensor, Storage, int], Any]
    ) -> Any:
        """The call's output for these tensor arguments; `make` turns a NewTensor into a value."""
        if (
            type(self.output) is NewTensor and self.output.storage[0] == "new"
        ):  # by far the most frequent
            spec = self.output
            return make(spec, Storage(spec.meta.nbytes), spec.offset)
        storages: dict[tuple[str, int], Storage] = {}

        def leaf(spec: Any) -> Any:
            if type(spec) is SameTensor:
                return tensors[spec.position]
            if type(spec) is not NewTensor:
                return spec
            kind, position = spec.storage
            if kind == "argument":
                base = tensors[position]
                return make(spec, base.storage, base.storage_offset + spec.offset)
            storage = storages.setdefault(spec.storage, Storage(spec.meta.nbytes))
            return make(spec, storage, spec.offset)

        return map_leaves(leaf, self.output)

    def subsymbols(self, bsym: BoundSymbol) -> Iterator[BoundSymbol]:
        """The body on the proxies of `bsym`; values inside are named after its first output."""
        values: dict[int, Any] = dict(enumerate(tensor_arguments(bsym.args, bsym.kwargs)))
        specs, outs = leaves(self.output), leaves(bsym.output)
        for spec, out in zip(specs, outs, strict=False):
            if type(spec) is NewTensor and isinstance(out, TensorProxy):
                values[spec.index] = out
        stem = next((out.name for out in bsym.outputs), "v")

        generators = [leaf for leaf in bsym.flat_args if is_generator(leaf)]

        def leaf(value: Any) -> Any:
            if value is GENERATOR:
                return generators[0]
            if type(value) is not Ref:
                return value
            if value.index not in values:
                inner = TensorProxy(meta=self.metas[value.index])
                values[value.index] = inner.renamed(f"{stem}_{value.index - self.arity}")
            return values[value.index]

        for operation in self.body:
            fn, args, kwargs, output = operation
            yield BoundSymbol(
                symbol(fn),
                map_leaves(leaf, args),
                map_leaves(leaf, kwargs),
                map_leaves(leaf, output),
                source=bsym.source,
                module_path=bsym.module_path,
                subsymbols=(),
            )


def makes_views(op: OpOverload) -> bool:
    """Whether what an operation gives may lie in memory of its arguments, which it does not write to."""
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in op._schema.arguments
    )


def is_generator(value: Any) -> bool:
    """Whether a call's argument is a generator, or the proxy of one."""
    return isinstance(value, (GeneratorProxy, Generator))


def _is_tensor_spec(value: Any) -> bool:
    return type(value) is NewTensor or type(value) is SameTensor


def tensor_arguments(args: Any, kwargs: Any) -> list[TensorProxy]:
    """The distinct tensor proxies of a call, in order of first occurrence: the positions that answers speak of."""
    return list(
        dict.fromkeys(
            leaf for leaf in (*leaves(args), *leaves(kwargs)) if isinstance(leaf, TensorProxy)
        )
    )
