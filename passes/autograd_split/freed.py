"""Freed results: where a backward inside of the program has freed a result's graph, the result still requires grad.

Before:

    def computation(x, w):
      ...
      t1 = freed(t0)
      return (t1, (w, t4))

    def epilogue(w, t4):
      w.grad = t4

After, so that nothing of the computation is differentiated:

    def computation(x, w):
      ...
      return (None, (t0, w, t4))

    def epilogue(t0, w, t4):
      t1 = freed(t0)
      w.grad = t4
      return t1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler.freed import FREED
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.trace import Program, Trace
from tracemill.passes.autograd_split.output_views import needed


@dataclass(frozen=True)
class FreedResults(ProgramPass):
    """Has the epilogue make the results whose graph is freed."""

    name: ClassVar[str] = "freed_results"
    stage: ClassVar[str] = "autograd_split"
    after: ClassVar[tuple[str, ...]] = ("output_views",)
    before: ClassVar[tuple[str, ...]] = ("split",)

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with these lines in the epilogue; one without any stays as it is."""
        computation, epilogue = program.computation, program.epilogue
        freed = [bsym for bsym in computation.bound_symbols if bsym.sym is FREED]
        if not freed:
            return program
        if epilogue is None:
            result, lines = computation.output, []
        else:
            result, lines = epilogue.output, epilogue.bound_symbols
            result = computation.output[0] if result is None else result
        made = Trace("epilogue", [], [*freed, *lines], result, no_grad=False)
        made = made.replace(args=needed(made))
        kept = [bsym for bsym in computation.bound_symbols if bsym.sym is not FREED]
        computation = computation.replace(bound_symbols=kept, output=(None, tuple(made.args)))
        return program.replace(computation=computation, epilogue=made)
