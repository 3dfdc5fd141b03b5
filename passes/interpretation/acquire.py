"""Acquire: run the program once on stand-ins, and keep what it did.

Before, a Python function and the arguments of a call; after, a program:

    def computation(x, y):
      v0 = torch.add(x, y)
      return v0
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.errors import MutationError
from tracemill.compiler.fakes import mode_of
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import AnyProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import proxies
from tracemill.passes.interpretation.gradients import gradients_inside
from tracemill.passes.interpretation.gradients.followed import followed
from tracemill.passes.interpretation.inputs import Inputs
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.mutation.granted import granted
from tracemill.passes.interpretation.mutation.own_leaves import refuse_outside
from tracemill.passes.interpretation.observe import observe, state_lines
from tracemill.passes.interpretation.outputs import Output
from tracemill.passes.interpretation.prologue import build_prologue
from tracemill.passes.interpretation.python.fetch import Fetched
from tracemill.passes.interpretation.python.leaks import refuse_leaks
from tracemill.passes.interpretation.python.passed import StandsElsewhere, standing_twice
from tracemill.passes.interpretation.python.places import Place
from tracemill.passes.interpretation.replacements.functions import is_users
from tracemill.passes.interpretation.symbolic_interpreter import SymbolicInterpreter


@dataclass(frozen=True)
class Acquire(ProgramPass):
    """Runs the program on stand-ins and records its torch calls; builds the prologue."""

    name: ClassVar[str] = "acquire"
    stage: ClassVar[str] = "interpretation"
    runs_program: ClassVar[bool] = True

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program of the call in `context`; the one given is empty."""
        as_they_are = standing_twice(context.call.values)
        while True:
            try:
                return self._run(context, as_they_are)
            except StandsElsewhere as found:
                as_they_are |= found.ids

    def _run(self, context: PassContext, as_they_are: frozenset[int]) -> Program:
        checked, names = context.cache != "same input", Names()
        locator = Locator(_module_of(context.call.form.target))
        interpreter = _interpreter(context, locator, names, checked=checked)
        made = self._acquired(interpreter, context, names, as_they_are, checked=checked)
        refuse_leaks(interpreter.release())
        return made

    def _acquired(
        self,
        interpreter: Interpreter,
        context: PassContext,
        names: Names,
        as_they_are: frozenset[int],
        *,
        checked: bool,
    ) -> Program:
        call = context.call
        target = call.form.target
        module = _module_of(target)
        inputs = Inputs(interpreter, names, as_they_are, checked=checked)
        marks = call.marks or [None for _ in call.values]
        taken = [
            inputs.argument(parameter, value, call.form.item_names(parameter, value), mark)
            for parameter, value, mark in zip(call.form.parameters, call.values, marks, strict=True)
        ]
        root = AnyProxy(
            names.claim("module" if module is target else "fn"), python_type=type(target)
        )
        roots = {Place(target, None, (), ""): root, **dict(inputs.opaque)}
        seen = observe(interpreter, context, [value for _, value in taken], roots, inputs)
        output = seen.output
        interpreter.settle(output.value)
        symbolic = isinstance(interpreter, SymbolicInterpreter)
        if symbolic:
            context.sizes = interpreter.sizes
        context.rebuild = output.rebuild
        context.unseen = interpreter.unseen
        context.runs_users_code = any(map(is_users, interpreter.bound_symbols))
        context.fake_mode = _fake_mode_of(interpreter)

        fetched, epilogue = state_lines(
            seen, interpreter, inputs, roots, (root, target), names, checked=checked
        )
        result, epilogue = followed(interpreter, output.value, epilogue)
        if any(root in list(line.inputs) for line in fetched.lines):
            fetched.lines.insert(0, prims.unpack(root, target))
        _keep_constants(interpreter, fetched, output, names)
        grants = granted(interpreter, names.claim)
        tensors = list(interpreter.lifted.values())
        arguments: list[Proxy] = [proxy for proxy, _ in tensors]
        arguments += [stand_in.proxy for stand_in, _ in interpreter.generators.values()]
        if symbolic:
            arguments += interpreter.sizes.named
        handed = {proxy for _, proxy in (*inputs.containers, *inputs.opaque, *output.found)}
        handed |= {new.proxy for new in seen.made}
        arguments += dict.fromkeys(proxy for proxy in proxies(result) if proxy in handed)
        if epilogue is not None:
            made = {proxy for bsym in interpreter.bound_symbols for proxy in bsym.outputs}
            arguments += [proxy for proxy in epilogue.args if proxy not in {*made, *arguments}]
            result = (result, tuple(epilogue.args))
        refuse_outside(interpreter.bound_symbols, arguments, result)
        notes = (output.note,) if output.note else ()
        computation = Trace(
            "computation", arguments, interpreter.bound_symbols, result, notes=notes
        )
        checked_tensors = [
            (grants[proxy].args[0] if proxy in grants else proxy, tensor)
            for proxy, tensor in tensors
            if proxy not in fetched.constants
        ]
        prologue = build_prologue(
            _signature(call.form.parameters, [proxy.name for proxy, _ in taken]),
            [proxy for proxy, _ in taken],
            [*inputs.lines, *fetched.lines],
            checked_tensors,
            arguments,
            checked=checked,
            attention=interpreter.uses_attention,
            sizes=interpreter.symbolic_inputs.lines if symbolic else (),
            grants=grants.values(),
            gradients=[
                *gradients_inside.checks(interpreter.tape, [proxy for proxy, _ in checked_tensors]),
                *interpreter.checks,
            ],
        )
        return Program(prologue, computation, epilogue=epilogue)


def _interpreter(
    context: PassContext, locator: Locator, names: Names, *, checked: bool
) -> Interpreter:
    if not context.sizes_are_symbolic:
        return Interpreter(locator, names, checked=checked)
    beginning = context.call.form.source
    return SymbolicInterpreter(locator, names, beginning=beginning, checked=checked)


def _fake_mode_of(interpreter: Interpreter) -> Any:
    """The mode of inputs without data; None where all have data."""
    modes = [mode_of(tensor) for _, tensor in interpreter.lifted.values()]
    return next(filter(None, modes), None)


def _keep_constants(
    interpreter: Interpreter, fetched: Fetched, output: Output, names: Names
) -> None:
    """Gives each call a copy of a tensor that no name leads to and that it returns: eager makes it anew, unseen.

    Raises MutationError where the program writes to one, which may be anybody's memory (`torch.from_numpy`).
    """
    constants = {proxy.storage for proxy in fetched.constants}
    for bsym in interpreter.bound_symbols:
        if bsym.mutates and any(
            tensor.storage in constants
            for position, tensor in enumerate(tensor_arguments(bsym.args, bsym.kwargs))
            if bsym.answer is not None and position in bsym.answer.mutated
        ):
            raise MutationError(
                f"{bsym.sym.name} at {bsym.source} writes to a tensor that was made unseen, such as by "
                "torch.from_numpy; write to a clone of it"
            )
    returned = {value.storage for value in proxies(output.value) if isinstance(value, TensorProxy)}
    for proxy in [proxy for proxy in fetched.constants if proxy.storage in returned]:
        constant = TensorProxy(proxy.name, meta=proxy.meta, storage_offset=proxy.storage_offset)
        proxy._name = names.fresh("v")
        tensor = _replace_input(interpreter, proxy, constant)
        fetched.constants[fetched.constants.index(proxy)] = constant
        fetched.lines[:] = [
            prims.unpack(constant, tensor) if proxy in list(line.outputs) else line
            for line in fetched.lines
        ]
        answer, _ = ORACLE.ask(torch.clone, (constant,), {})
        line = BoundSymbol(symbol(torch.clone), (constant,), {}, proxy, answer=answer)
        interpreter.bound_symbols.insert(0, line)


def _replace_input(
    interpreter: Interpreter, proxy: TensorProxy, other: TensorProxy
) -> torch.Tensor:
    """Makes `other` the proxy of the real tensor that `proxy` stood for; the tensor."""
    for key, (known, tensor) in interpreter.lifted.items():
        if known is proxy:
            interpreter.lifted[key] = (other, tensor)
            return tensor
    raise LookupError(f"{proxy!r} is no input")


def _module_of(target: Any) -> torch.nn.Module | None:
    owner = target if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _signature(parameters: list[inspect.Parameter], names: list[str]) -> list[inspect.Parameter]:
    return [
        parameter.replace(name=name, annotation=inspect.Parameter.empty)
        for parameter, name in zip(parameters, names, strict=True)
    ]
