"""The tape: the program so far, done again on fakes that PyTorch's autograd follows, for `torch.autograd.grad` inside.

The graph that autograd makes of the fakes says what the gradients are, what may not be asked twice, and what was written
to meanwhile. Each recorded call is done once and in order, from the first question on. What a backward does is found in a
log, and told in values of the program; where it reads a value from inside of a line (a layer norm's mean), the line is
opened: the operations that it consists of stand in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Ref, tensor_arguments
from tracemill.compiler.body import Body, NotCapturedError, Step, refs_in
from tracemill.compiler.bound_body import BoundBody
from tracemill.compiler.derivative import ASKING_GRAD_MODE
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.gradients import asked, nodes_of
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.module_hooks import Hooked
from tracemill.compiler.oracle import is_pytorch, unobserved
from tracemill.compiler.profiling import profiled
from tracemill.compiler.proxy import GeneratorProxy, TensorProxy
from tracemill.compiler.random_state import Generator as RandomGenerator
from tracemill.compiler.settings import Under, without_autocast
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, map_leaves
from tracemill.passes.interpretation.gradients.tape_log import TapeLog

_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]
ONCE: dict[str, Any] = {
    **{"retain_graph": False, "create_graph": False, "allow_unused": False},
    **{"is_grads_batched": False, "materialize_grads": False},
}
"""How `torch.autograd.grad` is asked where nothing is said."""

WAY_ROUND = "take the gradient of what the program returns, or use torch.func.grad"


class Found(NamedTuple):
    """What a backward does: its steps, each with the line that it differentiates, if one, and the gradients, with fakes."""

    steps: Sequence[tuple[Step, BoundSymbol | None]]
    gradients: Sequence[tuple[Ref, torch.Tensor] | None]


class Tape:
    """The program on fakes of `sizes`.

    lines: the program so far, growing. name: names new values. open_line: puts lines in the place of one.
    unseen: the tensors that the program took by `.data`. gradients_of: the inputs whose gradients it asked for.
    asking: what asks for gradients now, for errors.
    """

    def __init__(
        self,
        lines: list[BoundSymbol],
        sizes: Sizes,
        name: Callable[[], str],
        open_line: Callable[[BoundSymbol, Sequence[BoundSymbol]], None],
        unseen: set[TensorProxy],
    ) -> None:
        self._lines = lines
        self._unseen = unseen
        self._sizes = sizes
        self._open_line = open_line
        self._done = 0
        self._log = TapeLog()
        self._body = Body(self._log, 0)
        self._bound = BoundBody(self._body, sizes, name)
        self._models: dict[TensorProxy, torch.Tensor] = {}
        self._did: list[BoundSymbol | None] = []
        self._inside: dict[int, _Inside] = {}
        self._runs_user_code = False
        self._lost: str | None = None
        self.gradients_of: set[TensorProxy] = set()
        self.asking = "torch.autograd.grad"

    # Questions

    def gradients(self, outputs: Any, inputs: Any, given: Any, options: Mapping[str, Any]) -> Found:
        """What `torch.autograd.grad` does with these proxies and options; raises what it raises."""
        self._advance()
        if self._lost is not None:
            raise UnsupportedError(self._lost)
        outputs, inputs, given = map_leaves(self._given, (outputs, inputs, given))
        begin = len(self._log.operations)
        try:
            with profiled() if self._runs_user_code else nullcontext(), self._watching(self._log):
                made = asked(outputs, inputs, given, options)
        except BaseException:
            self._log.forget(begin)
            raise
        steps = self._cleaned(followed=options["create_graph"])
        self._did += [None] * (len(self._log.operations) - begin)
        return Found(
            [(step, self._differentiated(step.number)) for step in steps],
            [
                fake if fake is None else (self._body.resolve(self._log.add(fake)), fake)
                for fake in made
            ],
        )

    def nodes(self, outputs: Sequence[TensorProxy]) -> set[Any]:
        """The nodes of autograd's graph that the gradients of some values can come to."""
        self._advance()
        return set(nodes_of(map(self.model, outputs)))

    def leaves(self, outputs: Sequence[TensorProxy]) -> list[TensorProxy]:
        """The leaves that the gradients of some values come to."""
        nodes = self.nodes(outputs)
        found = {id(node.variable) for node in nodes if hasattr(node, "variable")}
        found |= {id(self.model(out)) for out in outputs if out.requires_grad and out.meta.is_leaf}
        by_model = {id(model): proxy for proxy, model in self._models.items()}  # the newest one
        return [proxy for model, proxy in by_model.items() if model in found]

    def is_freed(self, output: TensorProxy) -> bool:
        """Whether the graph of a value is no longer there: a backward freed it."""
        ends = self.leaves((output,))
        model, options = self.model(output), {"retain_graph": True, "allow_unused": True}
        try:
            with self._watching(None):
                asked([model], [*map(self.model, ends)], [torch.ones_like(model)], ONCE | options)
        except RuntimeError as error:
            return "second time" in str(error)
        return False

    def model(self, proxy: TensorProxy) -> torch.Tensor:
        """The fake that stands for a value."""
        known = self._models.get(proxy)
        if known is None:
            with unobserved():
                known = self._sizes.model(proxy)
            self._take(proxy, known)
        return known

    # A backward in values of the program

    def value(self, ref: Ref) -> TensorProxy | torch.Tensor | Sequence[Step]:
        """The value that a ref is, a constant, or the views that make it; opens the line inside of which it is made.

        Raises UnsupportedError where that cannot be opened, NotCapturedError where there is none.
        """
        values = self._bound.values
        if ref.index not in values:
            if ref.index in self._log.constants:
                return self._log.tensor(ref)
            views = self._body.regeneration(ref, values)
            joins = torch.is_grad_enabled() and self._log.tensor(ref).requires_grad
            if views and not joins:  # else gradients would be summed in another order
                return views
            self._open(ref)
        return values[ref.index]

    def recorded(self, step: Step, line: BoundSymbol, output: Any) -> None:
        """Takes note of the line and the values that a step has become."""
        self._did[step.number] = line
        for ref, proxy in zip(leaves(step.output), leaves(output), strict=True):
            if type(ref) is Ref:
                self._bound.values[ref.index] = proxy

    def go_on(self, gradients: Iterable[tuple[TensorProxy, torch.Tensor]]) -> None:
        """Goes on behind a backward, whose lines all stand in the program now."""
        for proxy, fake in gradients:
            self._take(proxy, fake)
        self._done = len(self._lines)

    # The program

    def _advance(self) -> None:
        """Does what was recorded since the last time."""
        for bsym in self._lines[self._done :]:
            begin = len(self._log.operations)
            outs = [out for out in bsym.outputs if isinstance(out, TensorProxy)]
            if bsym.sym is prims.SAME:
                self._become(bsym.args[0], bsym.output)
            elif _matters(bsym, outs):
                reason = _own_backward(bsym) or self._follow(bsym)
                if reason is not None:
                    self._leave(bsym, outs, reason)
            self._did += [bsym] * (len(self._log.operations) - begin)
        self._done = len(self._lines)

    def _become(self, proxy: TensorProxy, other: TensorProxy) -> None:
        """Goes on with a tensor as another value, which may be a leaf."""
        model = self.model(proxy)
        if other.meta.is_leaf and other.requires_grad:
            with self._watching(None):
                model.requires_grad_()
        self._take(other, model)

    def _follow(self, bsym: BoundSymbol) -> str | None:
        """Does a line; why it cannot be done."""
        unseen = any(out in self._unseen for out in bsym.outputs)
        impl: Any = _DATA if unseen else bsym.sym.impl
        self._runs_user_code |= not is_pytorch(_plain(bsym))
        begin = len(self._log.operations)
        args, kwargs = map_leaves(self._given, (bsym.args, bsym.kwargs))
        failure: Exception | None = None
        for way in self._sizes.ways:
            try:
                with self._watching(self._log), without_autocast(), way():
                    with torch.set_grad_enabled(bsym.grad_enabled):
                        return self._keep(bsym, leaves(impl(*args, **kwargs)))
            except (
                Exception
            ) as error:  # what fakes cannot do, and whatever user code raises on them
                self._log.forget(begin)
                failure = failure or error
        return f"on fakes it raises {type(failure).__name__}: {failure}"

    def _keep(self, bsym: BoundSymbol, made: Sequence[Any]) -> str | None:
        """Takes note of what a line made; why that is not what was recorded."""
        given = set(bsym.inputs)
        pairs = [
            (out, fake)
            for out, fake in zip(bsym.flat_outs, made, strict=True)
            if isinstance(out, TensorProxy)
        ]
        if not all(out in given or is_like(out, fake) for out, fake in pairs):
            return "on fakes it makes something else"
        refs = [self._take(out, fake) for out, fake in pairs]
        try:
            steps = self._cleaned(keep=refs, followed=True)
        except NotCapturedError:
            steps = ()
        inside = _Inside(bsym, steps)
        for done in steps or self._log.operations[len(self._did) :]:
            self._inside.update((ref.index, inside) for ref in refs_in(done.output))
        return None

    def _cleaned(self, *, keep: Sequence[Ref] = (), followed: bool) -> Sequence[Step]:
        """What was done since the last time."""
        self._body.given |= self._log.constants
        with self._watching(None), torch.no_grad():
            return self._body.take(keep, followed=followed)

    def _leave(self, bsym: BoundSymbol, outs: Sequence[TensorProxy], reason: str) -> None:
        """Lets gradients come no further than to what a line makes: there they raise."""
        reason = self._refusal(
            bsym, "its derivative is needed{}, and " + reason.replace("{", "{{").replace("}", "}}")
        )
        if bsym.mutates:
            self._lost = self._lost or reason
            return
        given = [self.model(proxy) for proxy in tensor_arguments(bsym.args, bsym.kwargs)]
        new = [out for out in dict.fromkeys(outs) if out not in self._models]
        plain = [out.changed("v", meta=_unfollowed(out.meta)) for out in new]
        with self._watching(None), torch.enable_grad():
            models = _Unfollowed.apply(reason, lambda: tuple(map(self._sizes.model, plain)), *given)
        for out, model in zip(new, models, strict=True):
            self._take(out, model if out.requires_grad else model.detach())

    def _take(self, proxy: TensorProxy, model: torch.Tensor) -> Ref:
        """Makes a fake the one that stands for a value, also where it stood for what that value was before."""
        ref = self._log.add(model)
        self._models[proxy] = model
        self._bound.take(ref, proxy)
        self._bound.values[ref.index] = proxy
        self._body.given.add(ref.index)
        return ref

    def _given(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy):
            return self.model(leaf)
        if isinstance(leaf, GeneratorProxy):
            return RandomGenerator(leaf.device)
        return self._sizes.given(leaf)

    @contextmanager
    def _watching(self, log: TapeLog | None) -> Generator[None]:
        """Fakes compute in the block, no mode or hook of the user's sees it, and `log` notes the operations."""
        with unobserved(), internals.quiet_fakes(), self._sizes.mode, log or nullcontext():
            yield

    # Lines

    def _differentiated(self, number: int) -> BoundSymbol | None:
        """The line whose node did an operation of a backward."""
        made = self._log.made_for(number)
        return self._did[made] if made < len(self._did) else None

    def _open(self, ref: Ref) -> None:
        """Opens the line inside of which a value is made."""
        inside = self._inside.get(ref.index)
        if inside is None:
            raise NotCapturedError("it reads a tensor that no line of the program makes")
        bsym = inside.bsym
        if not self._can_be_opened(inside):
            raise UnsupportedError(
                self._refusal(
                    bsym, "its derivative{} reads what it keeps inside, which only eager has"
                )
            )
        for made in (ref.index for step in inside.steps for ref in step.outputs):
            if made not in self._body.given:  # a view that a backward took again
                self._bound.values.pop(made, None)
        lines: list[BoundSymbol] = []
        for step in inside.steps:
            line = self._bound.line(step, bsym).from_bsym(grad_enabled=bsym.grad_enabled)
            lines.append(line)
            self._did[step.number] = line
        self._open_line(bsym, lines)

    def _can_be_opened(self, inside: _Inside) -> bool:
        """Whether a line's operations do the same as the line, and their derivatives are its derivative."""
        bsym, steps = inside
        if not steps or not is_pytorch(_plain(bsym)) or isinstance(bsym.sym, Under):
            return False
        if any(isinstance(proxy, GeneratorProxy) for proxy in bsym.inputs):
            return False
        if any(ref.index in self._log.constants for step in steps for ref in step.inputs):
            return False
        written = [step.inputs[position] for step in steps for position in step.answer.mutated]
        return not any(step.operation in ASKING_GRAD_MODE for step in steps) and not any(
            ref.index not in self._body.given and self._log.tensor(ref).requires_grad
            for ref in written
        )

    def _refusal(self, bsym: BoundSymbol, reason: str) -> str:
        source = bsym.source
        where = "" if source is None else f" at {source.file}:{source.line}: {source.text}"
        asked = f" by {self.asking} inside the program"
        return f"{bsym.sym.name}{where}: {reason.format(asked)}; {WAY_ROUND}"


class _Inside(NamedTuple):
    """A line and the operations that it consists of; none where these cannot be lines of their own."""

    bsym: BoundSymbol
    steps: Sequence[Step]


class _Unfollowed(torch.autograd.Function):
    """Makes values of which it is not known how gradients come to what they are made of: on their way they raise."""

    @staticmethod
    def forward(
        ctx: Any, reason: str, make: Callable[[], tuple[torch.Tensor, ...]], *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.reason = reason
        return make()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(ctx.reason)


def is_like(proxy: TensorProxy, fake: torch.Tensor) -> bool:
    """Whether a fake is what a value was recorded to be."""
    return TensorMeta.of(fake).replace(is_leaf=True) is proxy.meta.replace(is_leaf=True)


def _unfollowed(meta: TensorMeta) -> TensorMeta:
    return meta.replace(requires_grad=False, is_leaf=True)


def _matters(bsym: BoundSymbol, outs: Sequence[TensorProxy]) -> bool:
    """Whether a line makes what autograd follows, writes, or takes a view."""
    if any(out.requires_grad for out in outs) or bsym.mutates:
        return True
    memory = {proxy.storage for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
    return any(out.storage in memory for out in outs)


def _own_backward(bsym: BoundSymbol) -> str | None:
    """Why a line's derivative is not what PyTorch says of it."""
    if isinstance(bsym.sym, Hooked):
        return "the backward hooks of its module would have to be called"
    if bsym.sym.vjp is not None or bsym.sym.impl is None:
        return "it is not one that PyTorch knows"
    return None


def _plain(bsym: BoundSymbol) -> Any:
    return getattr(bsym.sym, "inner", bsym.sym).impl  # of a call under other settings
