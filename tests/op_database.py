"""PyTorch's own operator database as a judge: each operator on its samples, jit against eager.

PyTorch keeps, for its own tests, a list of its operators with sample inputs for each
(`torch.testing._internal.common_methods_invocations.op_db`). `check` runs one operator's samples
both ways and says how they differ. Right means: the same structure of results, of the same types;
tensors equal bit for bit (NaN equals NaN) with the same dtype, shape, stride, layout and
requires_grad; the same sharing of memory between inputs and results; the inputs and the random
state left the same; the same error where eager raises one. Each sample is called twice, so the
second answer comes from the cache.

For the developer's own use, failures grouped by error:

    python -m tests.op_database --summary [--backward] [--only NAME ...] [--samples N] [--jobs 2]
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import multiprocessing
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import optree
import torch

SAMPLES = 8
SEED = 1

# Their results are memory that nobody wrote: only what describes it can be compared.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)

# Eager itself does not give the same bits twice (lstsq: the gelsy driver), so neither can we.
TOLERANCES = {"linalg.lstsq": 1e-4, "linalg.lstsq.grad_oriented": 1e-4}

# Gradients that are equal but for rounding: where eager looks at the data to choose a shorter formula
# (no zero among a product's factors), the recorded backward has the one that is right for all data.
# masked_fill: eager sums what masked_select gives, other tensors what `where` does, in another order.
GRADIENT_TOLERANCES = {"masked.prod": 1e-5, "masked_fill": 1e-6}
if torch.__version__ < "2.11":  # so does cumprod there
    GRADIENT_TOLERANCES.update(dict.fromkeys(("cumprod", "linalg.vander", "masked.cumprod"), 1e-5))

# The layouts that fake tensors tell of these results are not eager's: gradients come in another one.
OTHER_LAYOUTS = frozenset({"ormqr"})


class Difference(AssertionError):
    """Jit and eager differ; the message says first in what."""


@functools.cache
def database() -> dict[str, Any]:
    """The operators that run in float32 on a CPU, by name. Importing the database takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {op.full_name: op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}
    assert len(found) > 600, "the database has changed: names are no longer unique?"
    return found


def names(*, backward: bool = False) -> list[str]:
    return [name for name, op in database().items() if not backward or differentiable(op)]


def differentiable(op: Any) -> bool:
    return op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")


@dataclass(frozen=True)
class Sample:
    """One call of an operator."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable_part: Callable[[Any], Any]

    def __str__(self) -> str:
        """Say what the call looks like, tensors by their metadata."""

        def show(leaf: Any) -> Any:
            return _Shown(leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = optree.tree_map(show, _tree(self.args, self.kwargs))
        return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])


@dataclass(frozen=True, repr=False)
class _Shown:
    tensor: torch.Tensor

    def __repr__(self) -> str:
        tensor = self.tensor
        strided = tensor.layout is torch.strided and not tensor.is_contiguous()
        stride = f" stride {list(tensor.stride())}" if strided else ""
        return f"<{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{stride}>"


def _tree(*parts: Any) -> Any:
    return parts


def samples(op: Any, count: int = SAMPLES, *, backward: bool = False) -> list[Sample]:
    """Up to `count` of the operator's samples, spread evenly over all; the same each time."""
    torch.manual_seed(0)
    every = list(op.sample_inputs("cpu", torch.float32, requires_grad=backward))
    step = max(len(every) / count, 1)
    picked = [every[int(n * step)] for n in range(min(count, len(every)))]
    return [
        Sample((sample.input, *sample.args), sample.kwargs, sample.output_process_fn_grad)
        for sample in picked
    ]


def copied(tree: Any) -> Any:
    """The same values in memory of their own; what was one object, or one storage, stays one."""
    memo: dict[int, Any] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            return leaf.clone_state()
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            plain = leaf.detach()
            if plain.layout is not torch.strided or plain.is_conj() or plain.is_neg():
                new = plain.clone()
            else:
                memory = plain.untyped_storage()
                if memory._cdata not in storages:
                    storages[memory._cdata] = memory.clone()
                new = torch.empty(0, dtype=plain.dtype).set_(
                    storages[memory._cdata], plain.storage_offset(), plain.shape, plain.stride()
                )
            memo[id(leaf)] = new.requires_grad_(leaf.requires_grad)
        return memo[id(leaf)]

    return optree.tree_map(copy_leaf, tree)


@dataclass(frozen=True)
class Outcome:
    """What one call did: its result or error, and all that it could have touched."""

    inputs: Any
    result: Any
    error: Exception | None
    grads: Sequence[torch.Tensor | None]
    random_state: torch.Tensor


def run(function: Callable[..., Any], sample: Sample, *, backward: bool) -> Outcome:
    """Call the function on a copy of the sample, from a fixed random state."""
    args, kwargs = inputs = copied((sample.args, sample.kwargs))
    torch.manual_seed(SEED)
    result, error, grads = None, None, ()
    try:
        with torch.set_grad_enabled(backward):
            result = function(*args, **kwargs)
        if backward:
            grads = _gradients(sample.differentiable_part(result), inputs)
    except Exception as raised:
        error = raised
    return Outcome(inputs, result, error, grads, torch.get_rng_state())


def _gradients(result: Any, inputs: Any) -> Sequence[torch.Tensor | None]:
    """The gradients of the inputs for drawn cotangents."""
    outputs = [
        leaf
        for leaf in optree.tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    wanted = {
        id(leaf): leaf
        for leaf in optree.tree_leaves(inputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    }
    if not outputs or not wanted:
        return ()
    generator = torch.Generator().manual_seed(SEED)
    cotangents = [
        torch.empty_like(output.detach()).copy_(
            torch.randn(output.shape, dtype=output.dtype, generator=generator)
        )
        for output in outputs
    ]
    return torch.autograd.grad(outputs, list(wanted.values()), cotangents, allow_unused=True)


def compare(name: str, got: Outcome, want: Outcome) -> None:
    """Raise `Difference` unless both calls of the named operator did the same."""
    tolerance = None if name in UNINITIALISED else TOLERANCES.get(name, 0.0)
    if got.error or want.error:
        if type(got.error) is not type(want.error):
            raise Difference(f"eager raised {want.error!r}, jit {got.error!r}") from got.error
        return
    _compare_tree(got.result, want.result, "result", tolerance)
    _compare_tree(got.inputs, want.inputs, "input", 0.0)
    if name in OTHER_LAYOUTS:
        got = replace(got, grads=_contiguous(got.grads))
        want = replace(want, grads=_contiguous(want.grads))
    nearly = tolerance if tolerance is None else GRADIENT_TOLERANCES.get(name, tolerance)
    _compare_tree(tuple(got.grads), tuple(want.grads), "gradient", nearly)
    if _sharing(got) != _sharing(want):
        raise Difference(f"memory shared {_sharing(got)}, in eager {_sharing(want)}")
    if not torch.equal(got.random_state, want.random_state):
        raise Difference("the random state afterwards differs")


def _contiguous(grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if grad is None else torch.empty(grad.shape).copy_(grad) for grad in grads]


def _compare_tree(got: Any, want: Any, where: str, tolerance: float | None) -> None:
    """Raise `Difference` unless both are the same; None: whatever the values."""
    if type(got) is not type(want):
        raise Difference(f"{where} is a {type(got).__name__}, in eager a {type(want).__name__}")
    if isinstance(want, torch.Tensor):
        _compare_tensors(got, want, where, tolerance)
    elif isinstance(want, list | tuple):
        if len(got) != len(want):
            raise Difference(f"{where} has {len(got)} parts, in eager {len(want)}")
        for n, (one, other) in enumerate(zip(got, want, strict=True)):
            _compare_tree(one, other, f"{where}[{n}]", tolerance)
    elif isinstance(want, dict):
        if list(got) != list(want):
            raise Difference(f"{where} has the keys {list(got)}, in eager {list(want)}")
        for key in want:
            _compare_tree(got[key], want[key], f"{where}[{key!r}]", tolerance)
    elif isinstance(want, torch.Generator):
        _compare_tree(got.get_state(), want.get_state(), f"{where}'s state", 0.0)
    elif got != want and not (got != got and want != want):
        raise Difference(f"{where} is {got!r}, in eager {want!r}")


def _metadata(tensor: torch.Tensor) -> dict[str, Any]:
    strided = tensor.layout is torch.strided
    return {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "layout": tensor.layout,
        # Strides of a tensor without elements say nothing: eager's differ between ways to the same value.
        "stride": tensor.stride() if strided and tensor.numel() else None,
        "storage offset": tensor.storage_offset() if strided else None,
        "requires_grad": tensor.requires_grad,
        "conjugate bit": tensor.is_conj(),
        "negative bit": tensor.is_neg(),
    }


def _compare_tensors(
    got: torch.Tensor, want: torch.Tensor, where: str, tolerance: float | None
) -> None:
    ours, theirs = _metadata(got), _metadata(want)
    for key in theirs:
        if ours[key] != theirs[key]:
            raise Difference(f"{where}'s {key} is {ours[key]}, in eager {theirs[key]}")
    if tolerance is None:
        return
    try:
        torch.testing.assert_close(
            got.detach(), want.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    except AssertionError as error:
        raise Difference(f"{where}'s values differ: {error}") from None


def _sharing(outcome: Outcome) -> list[int]:
    """For each tensor among inputs and results, the first of them that has the same memory."""
    first: dict[int, int] = {}
    leaves = optree.tree_leaves(_tree(outcome.inputs, outcome.result))
    tensors = [
        leaf
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel()
    ]
    return [
        first.setdefault(tensor.untyped_storage().data_ptr(), n) for n, tensor in enumerate(tensors)
    ]


def is_refusal(error: Exception | None) -> TypeGuard[Exception]:
    """Whether the error is one of our own, rather than PyTorch's or a fault inside."""
    return error is not None and type(error).__module__.partition(".")[0] == "tracemill"


@dataclass
class Verdict:
    """How an operator's samples went: each is right, refused or wrong."""

    name: str
    right: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.refused and not self.wrong


def program_of(op: Any) -> Callable[..., Any]:
    """A function of the user's that calls the operator."""
    function = op.op

    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return program


def check(
    name: str,
    jit: Callable[[Callable[..., Any]], Callable[..., Any]],
    *,
    backward: bool = False,
    count: int = SAMPLES,
) -> Verdict:
    """Run the operator's samples through one jitted function, each twice, and through eager."""
    op = database()[name]
    verdict = Verdict(name)
    started = time.perf_counter()
    program = program_of(op)
    jitted = jit(program)
    for sample in samples(op, count, backward=backward):
        want = run(program, sample, backward=backward)
        _judge(verdict, sample, jitted, want, backward=backward)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _judge(
    verdict: Verdict,
    sample: Sample,
    jitted: Callable[..., Any],
    want: Outcome,
    *,
    backward: bool,
) -> None:
    for call in ("first call", "second call"):
        got = run(jitted, sample, backward=backward)
        try:
            if is_refusal(got.error) and not want.error:
                _compare_untouched(got, sample)
                verdict.refused.append(f"{_one_line(got.error)}\n  {call}: {sample}")
                return
            compare(verdict.name, got, want)
        except Difference as difference:
            verdict.wrong.append(f"{_one_line(difference)}\n  {call}: {sample}{_origin(got.error)}")
            return
    verdict.right += 1


def _compare_untouched(got: Outcome, sample: Sample) -> None:
    """A refusal comes before any effect."""
    _compare_tree(got.inputs, copied((sample.args, sample.kwargs)), "refused, but input", 0.0)
    torch.manual_seed(SEED)
    if not torch.equal(got.random_state, torch.get_rng_state()):
        raise Difference("refused, but the random state has changed")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    prefix = "" if isinstance(error, Difference) else f"{type(error).__name__}: "
    return prefix + text[:300]


def _origin(error: BaseException | None) -> str:
    """The last frames of an unexpected error."""
    if error is None:
        return ""
    return "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])


# The summary.


def _check_quietly(name: str, backward: bool, count: int) -> Verdict:
    import tracemill

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(name, tracemill.jit, backward=backward, count=count)
        except Exception as error:
            verdict = Verdict(name)
            verdict.wrong.append(f"outside the call: {_one_line(error)}{_origin(error)}")
            return verdict


def _verdicts(chosen: Sequence[str], *, backward: bool, count: int, jobs: int) -> Iterator[Verdict]:
    one = functools.partial(_check_quietly, backward=backward, count=count)
    if jobs <= 1:
        yield from map(one, chosen)
        return
    context = multiprocessing.get_context("fork")  # the database is imported once, before
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(one, chosen, chunksize=8)


def _kind(message: str) -> str:
    """An error without what is particular to one sample: names, numbers, texts, metadata."""
    first = message.splitlines()[0]
    first = re.sub(r"\b(torch|Tensor)\.[\w.]+", "..", first)
    first = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", first)
    first = re.sub(r"\[[^\]]*\]|\([^)]*\)", "..", first)
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", first)[:160]


def summarise(verdicts: Sequence[Verdict], *, verbose: bool) -> None:
    """Print what went wrong and what was refused, the most frequent error first."""
    for title in ("wrong", "refused"):
        groups: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
        for verdict in verdicts:
            for message in getattr(verdict, title):
                groups[_kind(message)].append((verdict.name, message))
        ordered = sorted(groups.items(), key=lambda item: -len({name for name, _ in item[1]}))
        for kind, hits in ordered:
            operators = list(dict.fromkeys(name for name, _ in hits))
            print(f"\n{title}: {kind}\n  {len(operators)} operators: {', '.join(operators)}")
            for name, message in hits if verbose else hits[:1]:
                print(f"  e.g. {name}: " + message.replace("\n", "\n    "))
    passed = sum(verdict.passed for verdict in verdicts)
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    print(
        f"\n{passed} of {len(verdicts)} operators right ({passed / max(len(verdicts), 1):.1%}),"
        f" {wrong} wrong, {len(verdicts) - passed - wrong} refused on some sample;"
        f" {sum(verdict.right for verdict in verdicts)} samples right; {seconds:.0f} s of work"
    )
    slowest = sorted(verdicts, key=lambda verdict: -verdict.seconds)[:5]
    print("slowest:", ", ".join(f"{v.name} {v.seconds:.1f} s" for v in slowest))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--summary", action="store_true", help="group failures by error (default)")
    parser.add_argument("--verbose", action="store_true", help="show every failure of a group")
    parser.add_argument("--backward", action="store_true", help="gradients too")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these operators")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="per operator")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(argv)
    chosen = options.only or names(backward=options.backward)
    verdicts = list(
        _verdicts(chosen, backward=options.backward, count=options.samples, jobs=options.jobs)
    )
    summarise(verdicts, verbose=options.verbose or bool(options.only))
    return int(not all(verdict.passed for verdict in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
