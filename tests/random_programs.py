"""Random programs as text: views, writes, draws, state of Python, branches, contexts; and what a call of one does.

A program is built from choices, `(what, a, b, c)`: `what` names a template, the numbers choose among the tensors that the
program knows. A line that eager forbids where it stands is left out, so that most programs run to their end. A block
takes the next few lines in. `outcome` calls a program and tells all that a caller can see of it.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optree
import torch
from torch import Tensor, nn

Choice = tuple[str, int, int, int]

VIEWS = {
    "first row": "{n} = {a}[0]",
    "last rows": "{n} = {a}[1:]",
    "every second": "{n} = {a}[..., ::2]",
    "transposed": "{n} = {a}.transpose(0, -1)",
    "permuted": "{n} = {a}.movedim(0, -1)",
    "flat": "{n} = {a}.reshape(-1)",
    "viewed": "{n} = {a}.view(-1)",
    "unsqueezed": "{n} = {a}.unsqueeze({c} % 2)",
    "half": "{n} = {a}.chunk(2)[-1]",
    "alias": "{n} = {a}[:]",
    "detached": "{n} = {a}.detach()",
    "data": "{n} = {a}.data",
    "piece": "{n} = {a}.split(2)[0]",
    "strided": "{n} = torch.as_strided({a}, (2, 2), (1, 2), {c} % 3)",
    "diagonal": "{n} = {a}.diagonal()",
    "windows": "{n} = {a}.unfold(-1, 2, 1)",
    "expanded": "{n} = {a}[:1].expand(3, *{a}.shape[1:])",
    "narrowed": "{n} = {a}.narrow(-1, {c} % 3, 2)",
    "as the other": "{n} = {a}.view_as({b})",
    "as integers": "{n} = {a}.view(torch.int32)",
    "two of it": "{n}, {m} = {a}.unbind()[:2]",
    "squeezed": "{n} = {a}.squeeze()",
    "none indexed": "{n} = {a}[None, ..., 0]",
}
FRESH = {
    "doubled": "{n} = {a} * 2",
    "cloned": "{n} = {a}.clone()",
    "less the other's sum": "{n} = {a} - {b}.sum()",
    "plus": "{n} = {a} + {b}",
    "times": "{n} = {a} * {b}",
    "sine": "{n} = {a}.sin()",
    "squared": "{n} = {a}.pow(2).mean(-1, keepdim=True)",
    "exponential": "{n} = ({a} * 0.1).exp()",
    "chosen": "{n} = torch.where({a} > 0, {a}, {b})",
    "indexed": "{n} = {a}[torch.tensor([0, -1])]",
    "contiguous": "{n} = {a}.contiguous()",
    "wide": "{n} = {a}.double()",
    "narrow": "{n} = {a}.to(torch.float16)",
    "whole": "{n} = {a}.long()",
    "single": "{n} = {a}.float()",
    "catenated": "{n} = torch.cat([{a}, {b}])",
    "stacked": "{n} = torch.stack([{a}, {a}])",
    "product": "{n} = {a} @ {a}.mT",
    "softmax": "{n} = {a}.softmax(-1)",
    "zeros": "{n} = torch.zeros_like({a})",
    "new": "{n} = torch.full((2, 3), 1.5)",
    "sorted": "{n} = {a}.sort(-1).values",
    "compared": "{n} = {a} > {b}",
    "made": "{n} = torch.arange(3.0) * {a}.sum()",
    "scattered": "{n} = {a}.index_add(0, torch.tensor([0, 0]), {a}[:2])",
    "relu": "{n} = torch.relu({a})",
    "rebound": "{a} = {a} * 0.5",
    "rebound to the other": "{a} = {b}",
    "linear": "{n} = s.linear({a})",
    "norm": "{n} = s.norm({a})",
}
WRITES = {
    "add": "{a}.add_(1)",
    "add the other": "{a}.add_({b})",
    "plus equals": "{a} += {b}",
    "plus equals a number": "{a} += {c}",
    "times equals": "{a} *= 0.5",
    "add the other's sum": "{a}.add_({b}.sum())",
    "copy": "{a}.copy_({b})",
    "copy the other's mean": "{a}.copy_({b}.mean())",
    "scale": "{a}.mul_(0.5)",
    "zero": "{a}.zero_()",
    "set the first": "{a}[0] = 3.0",
    "set the last": "{a}[..., -1] = {b}.max()",
    "set a part": "{a}[1:] = {b}[1:]",
    "add to a part": "{a}[:, 0] += 1",
    "set by a mask": "{a}[{a} > 2] = -1.0",
    "add by a mask": "{a}[{a} > 1] += 1",
    "set by indices": "{a}[[0]] = {b}.min()",
    "put": "{a}.index_put_((torch.tensor([0, 0]),), {b}[:2], accumulate=True)",
    "index add": "{a}.index_add_(0, torch.tensor([0, 1]), {b}[:2])",
    "index fill": "{a}.index_fill_(-1, torch.tensor([1]), 2.0)",
    "scatter": "{a}.scatter_(0, torch.zeros_like({a}, dtype=torch.long), {b})",
    "fill where": "{a}.masked_fill_({a} < 0, 7.0)",
    "out": "torch.mul({a}, 3, out={a})",
    "out elsewhere": "torch.add({b}, 1, out={a})",
    "clamp": "{a}.clamp_(-50, 50)",
    "running sum": "{a}.cumsum_(0)",
    "sine in place": "{a}.sin_()",
    "relu in place": "torch.relu_({a})",
    "dropped in place": "nn.functional.dropout({a}, 0.5, inplace=True)",
    "transpose in place": "{t}.transpose_(0, -1)",
    "unsqueeze in place": "{t}.unsqueeze_(0)",
    "squeeze in place": "{t}.squeeze_()",
    "foreach": "torch._foreach_add_([{a}, {b}], 1.0)",
    "data added to": "{a}.data.add_(1)",
    "diagonal filled": "{a}.fill_diagonal_(2.0)",
}
DRAWS = {
    "dropout": "{n} = nn.functional.dropout({a}, 0.5)",
    "noise": "{n} = {a} + torch.randn_like({a})",
    "rand": "{n} = torch.rand(3) * {a}.sum()",
    "permuted rows": "{n} = {a}[torch.randperm(len({a}))]",
    "normal": "{a}.normal_()",
    "uniform": "{a}.uniform_()",
    "bernoulli": "{n} = torch.bernoulli({a}.sigmoid())",
    "of a generator": "{n} = torch.randn({a}.shape, generator=g)",
    "uniform of a generator": "{a}.uniform_(generator=g)",
    "seeded": "torch.manual_seed({c})",
    "multinomial": "{n} = torch.multinomial({a}.flatten().abs() + 1, 2)",
}
STATE = {
    "counted": "s.count += 1",
    "by count": "{n} = {a} + s.count",
    "scaled": "{n} = {a} * s.scale",
    "rescaled": "s.scale = s.scale * 0.5 if s.flag else 3.0",
    "flipped": "s.flag = not s.flag",
    "appended": "s.items.append(len(s.items))",
    "tensor appended": "s.items.append({a}.sum())",
    "summed": "{n} = {a} + sum(s.items)",
    "popped": "{n} = {a} * s.items.pop() if s.items else {a} - 1",
    "kept": "s.last = {a}",
    "kept twice": "s.last = s.table['kept'] = {a} * 2",
    "recalled": "{n} = {a} if s.last is None else s.last",
    "tabled": "s.table[f'key {{len(s.table) % 3}}'] = {a}.mean()",
    "table updated": "s.table.update(a=s.count, b={a}.sum().detach())",
    "of the table": "{n} = {a} + s.table['a']",
    "table emptied": "s.table = dict(a=1.0)",
    "held replaced": "s.held = s.held + {a}.sum().detach()",
    "held bound": "s.held = {a}",
    "buffer assigned": "s.norm.running_mean = s.norm.running_mean * 0.5",
    "evaluated": "s.norm.eval()",
    "trained": "s.norm.train()",
    "nested": "s.nested['list'][0]['t'] = {a} + 1",
    "nested read": "{n} = {a} * s.nested['list'][0]['t'].sum()",
    "tuple kept": "s.pair = ({a}, s.count)",
    "deleted": "del s.table['b']",
    "set default": "{n} = s.table.setdefault('d', {a})",
    "extended": "s.items[:1] = [s.count, s.scale]",
    "new attribute": "s.extra = getattr(s, 'extra', 0) + 1",
}
DECISIONS = {
    "masked": "{n} = {a}[{a} > 0]",
    "nonzero": "{n} = ({a} > 1).nonzero()",
    "unique": "{n} = {a}.unique()",
    "as many": "{n} = {a} * int(({a} > 0).sum())",
    "item": "s.count = int({a}.sum().item() * 4) // 4",
    "listed": "s.items = [float(v) for v in {a}.flatten()[:2].tolist()]",
    "maybe": "{n} = {a} * 2 if {a}.sum() > 4 else {b}",
    "sized": "{n} = {a}[: int({a}.numel() > 5) + 1]",
    "repeated": "{n} = torch.repeat_interleave({a}, torch.tensor([1, 2]), 0)",
    "half length": "{n} = {a}[: {a}.shape[0] // 2 + 1]",
    "shape as a factor": "{n} = {a} * {a}.shape[-1]",
}
BLOCKS = {
    "no grad": "with torch.no_grad():",
    "grad": "with torch.enable_grad():",
    "inference": "with torch.inference_mode():",
    "autocast": "with torch.autocast('cpu', torch.bfloat16):",
    "if positive": "if {a}.sum() > 3:",
    "if counted": "if s.count > 1:",
    "if flag": "if s.flag:",
    "if it requires": "if {a}.requires_grad:",
    "twice": "for _ in range(2):",
    "each row": "for {n} in {a}[:2]:",
    "if long": "if {a}.dim() and {a}.shape[0] > 4:",
    "forked": "with torch.random.fork_rng():",
    "tried": "try:",
}
TEMPLATES = VIEWS | FRESH | WRITES | DRAWS | STATE | DECISIONS | BLOCKS

PARAMETERS = ("x", "y", "w", "g")
_numbers = itertools.count()


class State:
    """What a program reads and writes of Python."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.count = 0
        self.scale = 2.0
        self.flag = True
        self.items: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"a": 1.5}
        self.last: Any = None
        self.held = torch.ones(6)
        self.pair: Any = ()
        self.nested = {"list": [{"t": torch.ones(2)}]}
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.arange(6.0) - 1)


def inputs_of(kind: str, start: float, rows: int, *, grad: bool) -> list[Any]:
    """The arguments x, y (which may share x's memory), w (a leaf that may require grad), g (a generator)."""
    count = rows * 6
    w = ((torch.arange(count * 1.0).reshape(rows, 6) * 0.25 + start) % 3).requires_grad_(grad)
    base = torch.arange(count * 1.0).reshape(rows, 6) * 0.25 - 2 + start
    if grad and kind.startswith("apart"):
        base = base + w * 0.5
    other = {
        "apart": torch.arange(6.0) + start,
        "apart, integers": torch.arange(6) - int(start),
        "apart, double": torch.arange(6.0, dtype=torch.float64) + start,
        "a row": base[1],
        "overlapping": base.reshape(-1)[4:16].view(2, 6),
        "the same": base,
        "another view": base[:],
        "transposed": base.T,
        "the leaf": w,
    }[kind]
    x = base[1:] if kind == "overlapping" else base
    return [x, other, w, torch.Generator().manual_seed(5)]


KINDS = (
    *("apart", "apart, integers", "apart, double", "a row", "overlapping", "the same"),
    *("another view", "transposed", "the leaf"),
)


@dataclass
class _Builder:
    """Writes a program's lines, and runs each on sample inputs to see whether eager takes it."""

    namespace: dict[str, Any]
    known: list[str] = field(default_factory=lambda: ["x", "y", "w", "s.held", "s.weight", "x"])
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def block(self, choices: Iterator[Choice], headers: list[str], limit: int | None) -> None:
        for what, a, b, c in itertools.islice(choices, limit):
            names = {"a": self._pick(a), "b": self._pick(b), "c": str(c % 7)}
            own = [name for name in self.known if name.startswith("t")]
            names["t"] = own[a % len(own)] if own else "none"
            made = [f"t{self.count}", f"t{self.count + 1}"]
            line = TEMPLATES[what].format(**names, n=made[0], m=made[1])
            if what in BLOCKS:
                self._nested(choices, headers, line, made[0], 1 + c % 3)
            elif self._runs(headers, line):
                self.lines.append("  " * (len(headers) + 1) + line)
                self._learn(line, made, headers)

    def _nested(
        self, choices: Iterator[Choice], headers: list[str], header: str, made: str, limit: int
    ) -> None:
        if not self._runs(
            headers,
            f"{header}\n  pass\nfinally:\n  pass" if header == "try:" else f"{header}\n  pass",
        ):
            return
        self.lines.append("  " * (len(headers) + 1) + header)
        before, known = len(self.lines), len(self.known)
        if header.startswith("for t"):
            self.known.append(made)
            self.count += 1
        self.block(choices, [*headers, header], limit)
        if header.startswith(("if", "for", "try")):  # what is made there may not be
            del self.known[known:]
        if len(self.lines) == before:
            self.lines.append("  " * (len(headers) + 2) + "pass")
        if header == "try:":
            indent = "  " * (len(headers) + 1)
            self.lines += [f"{indent}finally:", f"{indent}  s.count += 1"]

    def _pick(self, number: int) -> str:
        return self.known[number % len(self.known)]

    def _learn(self, line: str, made: list[str], headers: list[str]) -> None:
        if line.startswith(made[0]):
            self.known.append(made[0])
            self.count += 1
            if line.startswith(f"{made[0]}, {made[1]}"):
                self.known.append(made[1])
                self.count += 1

    def _runs(self, headers: list[str], line: str) -> bool:
        contexts = [h for h in headers if h.startswith("with")]
        text = "".join("  " * depth + header + "\n" for depth, header in enumerate(contexts))
        indent = "  " * len(contexts)
        text += "\n".join(indent + part for part in line.split("\n"))
        try:
            exec(compile(text, "<sample>", "exec"), self.namespace)
        except Exception:
            return False
        return True


def text_of(choices: Sequence[Choice], returned: Sequence[int], kind: str, *, grad: bool) -> str:
    """The text of the program that the choices describe."""
    with torch.random.fork_rng():
        sample = dict(zip(PARAMETERS, inputs_of(kind, 0.0, 4, grad=grad), strict=True))
        builder = _Builder({"torch": torch, "nn": nn, "s": State(), **sample})
        builder.block(iter(choices), [], None)
    results = [builder._pick(number) for number in returned]
    lines = [
        f"def program({', '.join(PARAMETERS)}):",
        *builder.lines,
        f"  return [{', '.join(results)}]",
    ]
    return "\n".join(lines) + "\n"


def made_of(text: str) -> tuple[Callable[..., Any], State]:
    """The program, over a state of its own."""
    file = f"<random program {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "s": State()}
    exec(compile(text, file, "exec"), namespace)
    return namespace["program"], namespace["s"]


@dataclass
class Outcome:
    """What a call did. tensors: all that a caller holds afterwards; rest: what is no tensor."""

    error: Exception | None
    tensors: list[Tensor]
    rest: Any
    random: list[Tensor]
    gradients: list[Tensor | None] | Exception


def outcome(
    program: Callable[..., Any], state: State, inputs: Sequence[Any], *, grad: bool
) -> Outcome:
    """What a call of the program does, its gradients included."""
    torch.manual_seed(1)
    result, error = None, None
    try:
        with torch.set_grad_enabled(grad):
            result = program(*inputs)
    except Exception as raised:
        error = raised
    seen, rest = flattened([result, *inputs[:3], vars(state)])
    random = [torch.get_rng_state(), inputs[3].get_state()]
    gradients: Any = []
    if grad and error is None:
        try:
            gradients = gradients_of(
                seen,
                [inputs[2], state.weight, *state.linear.parameters(), *state.norm.parameters()],
            )
        except RuntimeError as raised:
            gradients = raised
    return Outcome(error, seen, rest, random, gradients)


def flattened(tree: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a structure, and the rest of it; a module is its parameters, buffers and flags."""

    def opened(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return [*value.parameters(), *value.buffers(), value.training]
        return value

    leaves, spec = optree.tree_flatten(
        optree.tree_map(
            opened, tree, is_leaf=lambda v: isinstance(v, nn.Module), none_is_leaf=True
        ),
        none_is_leaf=True,
    )
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return tensors, (
        [
            "tensor" if isinstance(v, Tensor) else v
            for v in leaves
            if not isinstance(v, torch.Generator)
        ],
        spec,
    )


def gradients_of(seen: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    seen = [tensor for tensor in seen if not _is_gone(tensor)]
    losses = [
        (i + 1) * t.double().sum()
        for i, t in enumerate(seen)
        if t.requires_grad and t.is_floating_point()
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not losses or not wanted:
        return []
    loss = torch.stack(losses).sum()
    return [*torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=True)]


def after_writing(outcome: Outcome) -> Outcome:
    """The same after each tensor was written to: what shares its memory changes with it."""
    with torch.no_grad():
        for tensor in outcome.tensors:
            with suppress(RuntimeError):  # of an expanded one
                tensor.add_(1)
    return outcome


def differences(want: Outcome, got: Outcome) -> str | None:
    """In what two calls differ; None if in nothing."""
    if want.error is not None or got.error is not None:
        if type(want.error) is not type(got.error):
            return f"error: {want.error!r} in eager, {got.error!r}"
    if want.rest != got.rest:
        return f"state or structure: {want.rest} in eager, {got.rest}"
    for n, (one, other) in enumerate(zip(want.tensors, got.tensors, strict=True)):
        found = _tensor_difference(one, other, 0.0)
        if found:
            return f"tensor {n}: {found}"
    if _sharing(want.tensors) != _sharing(got.tensors):
        return f"memory: {_sharing(want.tensors)} in eager, {_sharing(got.tensors)}"
    if any(not torch.equal(a, b) for a, b in zip(want.random, got.random, strict=True)):
        return "random state"
    return _gradient_difference(want.gradients, got.gradients)


def _gradient_difference(want: Any, got: Any) -> str | None:
    if isinstance(got, Exception) and "modified by an inplace operation" in str(got):
        return None  # one node stands for the whole program: it looks at more than eager's nodes
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is not type(got):
            return f"gradients: {want!r} in eager, {got!r}"
        return None
    if len(want) != len(got):
        return f"gradients: {len(want)} in eager, {len(got)}"
    for n, (one, other) in enumerate(zip(want, got, strict=True)):
        if (one is None) != (other is None):
            return f"gradient {n}: {one} in eager, {other}"
        if one is not None:
            found = _tensor_difference(one, other, 1e-5, layout=False)
            if found:
                return f"gradient {n}: {found}"
    return None


def _tensor_difference(
    one: Tensor, other: Tensor, tolerance: float, *, layout: bool = True
) -> str | None:
    if _is_gone(one) or _is_gone(other):
        return None
    for name in ("dtype", "shape", "requires_grad", "is_leaf"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(one, name)} in eager, {getattr(other, name)}"
    if layout and one.numel() and one.stride() != other.stride():
        return f"stride {one.stride()} in eager, {other.stride()}"
    if one.is_inference() != other.is_inference():
        return f"is_inference {one.is_inference()} in eager"
    try:
        torch.testing.assert_close(
            other.detach(), one.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    except AssertionError as error:
        return f"{error} {one} in eager, {other}"
    return None


def _is_gone(tensor: Tensor) -> bool:
    """Whether it is an output of unbind whose base was written to: PyTorch tells nothing of it any more."""
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return True
    return False


def _sharing(tensors: Sequence[Tensor]) -> list[tuple[int, int, int]]:
    """For each tensor: the first that is it, the first that shares its memory, and how far from where that begins."""
    objects: dict[int, int] = {}
    storages: dict[int, tuple[int, int]] = {}
    found = []
    for n, tensor in enumerate(tensors):
        begin = int(tensor.storage_offset())
        first, offset = storages.setdefault(tensor.untyped_storage()._cdata, (n, begin))
        found.append((objects.setdefault(id(tensor), n), first, begin - offset))
    return found
