"""Tracemill's own passes, printers and executors, brought through the hooks that everybody uses."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from tracemill.compiler.pass_base import AnyPass
from tracemill.compiler.plugins import EXECUTORS, hookimpl
from tracemill.executors.inductor.executor import InductorExecutor
from tracemill.executors.inductor.tiered import TieredExecutor
from tracemill.executors.nvfuser.library import HOW_TO_INSTALL
from tracemill.executors.torch import TorchExecutor
from tracemill.passes.autograd_split.freed import FreedResults
from tracemill.passes.autograd_split.minimal_saving import MinimalSaving
from tracemill.passes.autograd_split.output_views import OutputViews
from tracemill.passes.autograd_split.rematerialisation import Rematerialisation
from tracemill.passes.autograd_split.split import Split
from tracemill.passes.cse import CommonSubexpressions
from tracemill.passes.dce import DeadCodeElimination
from tracemill.passes.empty_operands import EmptyOperands
from tracemill.passes.executor_fusion.claim import Claim
from tracemill.passes.executor_fusion.delete_last_used import DeleteLastUsed
from tracemill.passes.executor_fusion.redundant_views import RedundantViews
from tracemill.passes.executor_fusion.size_guards import SizeGuards
from tracemill.passes.interpretation.acquire import Acquire
from tracemill.passes.interpretation.functionalise import Functionalise
from tracemill.passes.proxy_renaming import ProxyRenaming
from tracemill.printers.base import Printer
from tracemill.printers.default import DefaultPrinter
from tracemill.printers.html import HtmlPrinter
from tracemill.printers.minimal import MinimalPrinter
from tracemill.printers.script import ScriptPrinter
from tracemill.printers.verbose import VerbosePrinter

EXECUTORS.absent["nvfuser"] = HOW_TO_INSTALL


@hookimpl
def tracemill_passes() -> Iterable[AnyPass]:
    """One pass per file of `passes/`."""
    return (
        Acquire(),
        Functionalise(),
        ProxyRenaming(),
        EmptyOperands(),
        DeadCodeElimination(),
        CommonSubexpressions(),
        OutputViews(),
        FreedResults(),
        Split(),
        MinimalSaving(),
        Rematerialisation(),
        RedundantViews(),
        Claim(),
        DeleteLastUsed(),
        SizeGuards(),
    )


@hookimpl
def tracemill_printers() -> Iterable[Printer]:
    """One printer per file of `printers/`."""
    return DefaultPrinter(), VerbosePrinter(), MinimalPrinter(), ScriptPrinter(), HtmlPrinter()


@hookimpl
def tracemill_executors() -> Iterable[Any]:
    """PyTorch itself, its code generator, and nvFuser where it is installed."""
    executors: list[Any] = [TorchExecutor(), InductorExecutor(), TieredExecutor()]
    if find_spec("nvfuser_direct") is not None:
        # Deferred: its translations name hundreds of operations, which takes a moment.
        from tracemill.executors.nvfuser.executor import NvFuserExecutor

        executors.append(NvFuserExecutor())
    return executors
