"""Running a computation that holds checks of the values that Python went on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.guards import OtherPath
from tracemill.compiler.random_state import Generator, random_state, set_random_state
from tracemill.compiler.trace import Program


def on_its_path(program: Program, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, raising OtherPath, with the random states as before, when a value takes another path.

    A program without such checks is run as it is.
    """
    lines = program.computation.bound_symbols
    checks = [index for index, bsym in enumerate(lines) if bsym.sym is prims.PATH]
    if not checks:
        return run
    subjects = {lines[index].args[0] for index in checks}
    draws = any(bsym.is_random for bsym in lines[: checks[-1]])

    def run_on_path(*inputs: Any) -> Any:
        state = None
        if draws:
            state = random_state([value for value in inputs if isinstance(value, Generator)])
        try:
            return run(*inputs)
        except AssertionError as error:
            if len(error.args) != 1 or error.args[0] not in subjects:
                raise
            if state is not None:
                set_random_state(state)
            raise OtherPath(error.args[0]) from None

    return run_on_path


def too_many_paths(limit: int, latest: str) -> str:
    """The message for a call whose values ask for one path more than `limit`."""
    return (
        f"the program has taken {limit} paths that depend on values of tensors, for inputs of this kind, and this call "
        f"would take another one ({latest}).\n{WAY_ROUND}; jit(..., paths={2 * limit}) allows more"
    )


def unsteady(latest: str) -> str:
    """The message for a value that was another one when the compiled program computed it again."""
    return (
        f"a value that Python went on with was another one when the compiled program computed it ({latest}): the same "
        f"operations do not give the same bits.\n{WAY_ROUND}"
    )


WAY_ROUND = (
    "Way round: keep the value in a tensor (torch.where instead of `if`, a mask instead of indexing by it), "
    "or compute it before the jitted function and pass it as an argument"
)
