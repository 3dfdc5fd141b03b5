"""The oracle: what does a call return, alias, mutate and consist of? PyTorch is asked once per signature.

On a miss the real callable runs on fake tensors under a dispatch mode that logs each ATen operation; the answer is
remembered under the call's key. What fakes cannot answer is asked with real zeros of the same metadata.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import LeakedValueError
from tracemill.compiler.proxy import GeneratorProxy, Storage, TensorMeta, TensorProxy
from tracemill.compiler.random_state import Generator, kept_random_state
from tracemill.compiler.settings import Ambient
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.symbolic import while_tracing
from tracemill.compiler.values import leaves, map_leaves

REMEMBERED_SIGNATURES = 16_384
"""How many answers the oracle keeps; the oldest are forgotten first."""

STORAGE_READERS = {
    torch.as_strided,
    torch.Tensor.as_strided,
    torch.Tensor.storage_offset,
    torch.ops.aten.as_strided.default,
    torch.as_strided_copy,
    torch.as_strided_scatter,
    torch.Tensor.as_strided_scatter,
}
"""Calls whose answer depends on where in its storage a tensor begins."""


_UNDECLARED_WRITERS = {
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
    torch.ops.aten.miopen_batch_norm.default,
}
"""Write their fourth and fifth argument, the running statistics, when the sixth says so; their schemas do not tell."""


_SPLITTERS = {torch.tensor_split, torch.Tensor.tensor_split}
"""Calls that split by the data of a second tensor, which neither fakes nor zeros tell."""


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
    random: whether it draws random numbers.
    body: the ATen operations that it consists of.
    asked: the keys of the arguments that it is about.
    """

    __slots__ = ("arity", "asked", "body", "changed", "metas", "mutated", "output", "random")

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
        self.body = tuple(body)
        self.metas = metas or {}
        self.asked: Any = None

    @property
    def is_query(self) -> bool:
        """Whether the call only looked at metadata: no tensor came out, and nothing was done."""
        return (
            not self.mutated
            and not self.random
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
        specs, outs = list(leaves(self.output)), list(leaves(bsym.output))
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


def is_pytorch(fn: Callable[..., Any]) -> bool:
    """Whether a callable is PyTorch's own, so that what is known of it stays true."""
    path = symbol(fn).path or ""
    if path.startswith("torch.ops."):
        return path.split(".")[2] in ("aten", "prims")
    return path != ""


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


class _NonLeaf(torch.autograd.Function):
    """Gives a fake a grad_fn, so that autograd treats it as the intermediate value that it stands for."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0]


def non_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like this one, with a grad_fn."""
    return _NonLeaf.apply(tensor)


class BodyLog(internals.TorchDispatchMode):
    """Logs every ATen operation, with its tensors as refs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[BodyOperation] = []
        self.written: list[torch.Tensor] = []
        self.random = False
        self._refs: dict[int, Ref] = {}
        self._kept: list[torch.Tensor] = []  # an id stays valid as long as its tensor lives

    def add(self, tensor: torch.Tensor) -> Ref:
        """The ref of a tensor, a new one when it was not seen before."""
        ref = self._refs.get(id(tensor))
        if ref is None:
            ref = self._refs[id(tensor)] = Ref(len(self._kept))
            self._kept.append(tensor)
        return ref

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor of a ref."""
        return self._kept[ref.index]

    @property
    def size(self) -> int:
        """How many tensors were seen."""
        return len(self._kept)

    def find(self, tensor: torch.Tensor) -> int:
        """The index of a tensor's ref, -1 when no operation touched it."""
        ref = self._refs.get(id(tensor))
        return -1 if ref is None else ref.index

    @property
    def metas(self) -> dict[int, TensorMeta]:
        """The metadata of every tensor seen."""
        return {index: _meta_of(tensor) for index, tensor in enumerate(self._kept)}

    def _encode(self, value: Any) -> Any:
        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.add(value)
            return GENERATOR if isinstance(value, Generator) else value

        return map_leaves(leaf, value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        refs = self._encode(args), self._encode(kwargs)
        output = func(*args, **kwargs)
        if func.namespace == "prim":
            return output
        self.operations.append(BodyOperation(func, *refs, self._encode(output)))
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        self.written.extend(written_arguments(func, args, kwargs))
        return output


def _meta_of(tensor: torch.Tensor) -> TensorMeta:
    """The metadata of a tensor; a view taken under no_grad, of what is written to there, has no say in autograd."""
    try:
        return TensorMeta.of(tensor)
    except RuntimeError:
        return TensorMeta.of(tensor.detach()).replace(requires_grad=True, is_leaf=False)


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors that an ATen operation writes to, as its schema says (or should)."""
    if func in _UNDECLARED_WRITERS:
        running, training = args[3:5], args[5]
        yield from (tensor for tensor in running if training and isinstance(tensor, torch.Tensor))
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        yield from (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


class Oracle:
    """Answers calls, and remembers the answers; one serves all threads, each with fakes of its own."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, Answer] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = threading.local()
        self.asked = 0

    def ask(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        local: dict[Any, Answer] | None = None,
    ) -> tuple[Answer, list[TensorProxy]]:
        """The answer for a call on proxies and constants, and the call's tensors in the answer's order.

        local: remembers answers that hold an object by identity; one dict per trace.
        Raises what eager raises for the call.
        """
        key = CallKey()
        parts = (fn, key.of(args), key.of(kwargs) if kwargs else None, Ambient.now())
        if fn in STORAGE_READERS:
            parts = (*parts, tuple(tensor.storage_offset for tensor in key.tensors))
        if key.local or not is_pytorch(fn):
            local = {} if local is None else local
            answer = local.get(parts)
            if answer is None:
                answer = local[parts] = self._work_out(fn, args, kwargs, key.tensors)
                answer.asked = parts[1:3]
            return answer, key.tensors
        answer = self._answers.get(parts)
        if answer is None:
            answer = self._work_out(fn, args, kwargs, key.tensors)
            answer.asked = parts[1:3]
            with self._lock:
                self._answers[parts] = answer
                if len(self._answers) > REMEMBERED_SIGNATURES:
                    self._answers.popitem(last=False)
        return answer, key.tensors

    def clear(self) -> None:
        """Forgets every answer."""
        with self._lock:
            self._answers.clear()

    @property
    def fake_mode(self) -> internals.FakeTensorMode:
        """This thread's fake tensors: a mode shared by threads fails."""
        mode = getattr(self._thread, "fake_mode", None)
        if mode is None:
            mode = self._thread.fake_mode = internals.FakeTensorMode(allow_non_fake_inputs=True)
        return mode

    def _work_out(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: list[TensorProxy],
    ) -> Answer:
        self.asked += 1
        if fn in _SPLITTERS and len(tensors) > 1:
            raise internals.DynamicOutputShapeException(cast(Any, fn))
        try:
            with internals.quiet_fakes():
                return _run(fn, args, kwargs, tensors, self.fake_mode)
        except (internals.DataDependentOutputException, internals.DynamicOutputShapeException):
            raise
        except Exception:
            # Either the call is wrong, and eager's own error is wanted, or fakes cannot do it.
            return _run(fn, args, kwargs, tensors, None)


def _run(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[TensorProxy],
    fake_mode: internals.FakeTensorMode | None,
) -> Answer:
    given = [leaf for leaf in (*leaves(args), *leaves(kwargs)) if isinstance(leaf, Generator)]
    with unobserved(), kept_random_state(given) if fake_mode is None else nullcontext():
        models = [stand_in_for(tensor, fake_mode) for tensor in tensors]
        return observe(fn, args, kwargs, tensors, models, fake_mode)[1]


@contextmanager
def unobserved() -> abc.Generator[None]:
    """In the block, no mode or saved-tensor hook of the user's sees what is computed."""
    with internals.DisableTorchFunction(), internals.no_user_modes():
        before = internals.set_saved_tensor_hooks_ignored(True)
        try:
            yield
        finally:
            internals.set_saved_tensor_hooks_ignored(before)


def observe(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[TensorProxy],
    models: Sequence[torch.Tensor],
    fake_mode: internals.FakeTensorMode | None = None,
) -> tuple[Any, Answer]:
    """Runs a call with `models` in place of `tensors`, and says what it returned and what it did."""
    log = BodyLog()
    for model in models:
        log.add(model)
    by_proxy = dict(zip(tensors, models, strict=True))

    def real(leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy):
            return by_proxy[leaf]
        return Generator(leaf.device) if isinstance(leaf, GeneratorProxy) else while_tracing(leaf)

    args, kwargs = map_leaves(real, (tuple(args), dict(kwargs)))
    with fake_mode or nullcontext(), log:
        output = fn(*args, **kwargs)
    return output, _answer(output, tensors, models, log)


def stand_in_for(tensor: TensorProxy, fake_mode: internals.FakeTensorMode | None) -> torch.Tensor:
    """A fake tensor with a proxy's metadata; real zeros where there is no fake mode."""
    meta = tensor.meta
    mode: AbstractContextManager[Any] = fake_mode or nullcontext()
    with mode, torch.enable_grad():
        if meta.layout != torch.strided:
            model = torch.zeros(
                meta.shape, dtype=meta.dtype, device=meta.device, layout=meta.layout
            )
        else:
            model = _strided(tensor, real=fake_mode is None)
        if meta.requires_grad:
            model.requires_grad_()
            if not meta.is_leaf:
                model = _NonLeaf.apply(model)
    return model


def _strided(tensor: TensorProxy, *, real: bool) -> torch.Tensor:
    meta = tensor.meta
    if tensor.storage_offset:
        extent = max(
            tensor.storage.nbytes // meta.dtype.itemsize, tensor.storage_offset + extent_of(meta)
        )
        flat = torch.empty(extent, dtype=meta.dtype, device=meta.device)
        model = flat.as_strided(meta.shape, meta.stride, tensor.storage_offset).detach()
    else:
        model = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    if real:
        model.zero_()
    if meta.conj:
        model = model.conj()
    if meta.neg:
        model = internals.neg_view(model)
    return model


def is_dense(meta: TensorMeta) -> bool:
    """Whether a tensor's elements fill its memory without gaps or overlaps, in whatever order of dimensions."""
    step = 1
    pairs = zip(meta.stride, meta.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True


def plain_like(meta: TensorMeta) -> TensorMeta:
    """The metadata of what `torch.empty_like` makes: dense, with the strides in the same order, and no gradient."""
    stride = meta.stride
    if meta.layout == torch.strided and not is_dense(meta):
        with ORACLE.fake_mode:
            like = torch.empty_strided(
                meta.shape, meta.stride, dtype=meta.dtype, device=meta.device
            )
            stride = torch.empty_like(like).stride()
    return TensorMeta(meta.shape, stride, meta.dtype, meta.device, layout=meta.layout)


def extent_of(meta: TensorMeta) -> int:
    """How many elements of storage a strided tensor reaches over, from its first element."""
    if meta.numel == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(meta.shape, meta.stride, strict=True)
    )


def _answer(
    output: Any, tensors: Sequence[TensorProxy], models: Sequence[torch.Tensor], log: BodyLog
) -> Answer:
    positions = {id(model): position for position, model in enumerate(models)}
    aliases: dict[Any, tuple[str, int]] = {}
    for position, model in enumerate(models):
        aliases.setdefault(_storage_key(model), ("argument", position))

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in positions:
            return SameTensor(positions[id(value)])
        storage = aliases.setdefault(_storage_key(value), ("new", len(aliases)))
        offset = _offset(value)
        if storage[0] == "argument":
            offset -= _offset(models[storage[1]])
        return NewTensor(TensorMeta.of(value), log.find(value), storage, offset)

    spec = map_leaves(leaf, output)
    for value in leaves(spec):
        if isinstance(value, torch.Tensor):
            raise LeakedValueError(f"a fake tensor escaped in the answer {spec!r}")
    written = {_storage_key(tensor) for tensor in log.written}
    mutated = tuple(i for i, model in enumerate(models) if _storage_key(model) in written)
    changed = {
        i: TensorMeta.of(model)
        for i, (model, tensor) in enumerate(zip(models, tensors, strict=True))
        if i in mutated and TensorMeta.of(model) is not tensor.meta
    }
    body = _without_wrapping(log.operations, spec)
    return Answer(spec, len(tensors), mutated, changed, log.random, body, log.metas)


def _without_wrapping(operations: Sequence[BodyOperation], output: Any) -> list[BodyOperation]:
    """Operations without the `detach` that autograd does of a result that it saves."""
    read = {spec.index for spec in leaves(output) if isinstance(spec, NewTensor)}

    def note(leaf: Any) -> None:
        if type(leaf) is Ref:
            read.add(leaf.index)

    for operation in operations:
        map_leaves(note, (operation.args, operation.kwargs))
    detach = torch.ops.aten.detach.default
    return [item for item in operations if item.fn is not detach or item.output.index in read]


def _storage_key(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _offset(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) if tensor.layout == torch.strided else 0


ORACLE = Oracle()
"""The process's oracle: answers are true of PyTorch, whoever asked."""
