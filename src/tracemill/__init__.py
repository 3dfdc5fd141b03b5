"""tracemill: a compiler for PyTorch programs that people can read."""

from tracemill import executors, passes, printers
from tracemill.compiler import builtin_plugins, texts
from tracemill.compiler.errors import (
    DataDependentError,
    LeakedValueError,
    MutationError,
    OptionError,
    PassError,
    PluginError,
    PluginWarning,
    PrinterError,
    SharpEdgeError,
    SharpEdgeWarning,
    TraceError,
    TracemillError,
    UnsupportedError,
)
from tracemill.compiler.fakes import fake
from tracemill.compiler.jit import (
    cache_info,
    jit,
    last_backward_traces,
    last_epilogue_traces,
    last_prologue_traces,
    last_report,
    last_traces,
    trace,
)
from tracemill.compiler.pass_base import Pass, PassContext, ProgramPass
from tracemill.compiler.plugins import PLUGINS, hookimpl, register_plugin, unregister_plugin
from tracemill.compiler.proxy import (
    AnyProxy,
    BoolProxy,
    CollectionProxy,
    FloatProxy,
    IntegerProxy,
    NumberProxy,
    Proxy,
    TensorProxy,
)
from tracemill.compiler.recording import tracectx
from tracemill.compiler.report import PassReport, Report
from tracemill.compiler.specialise import CacheInfo
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import substitute
from tracemill.executors.base import OperatorExecutor
from tracemill.executors.fusion import FusionExecutor, Region
from tracemill.printers.base import Printer
from tracemill.printers.difference import Difference, diff

texts.install()
PLUGINS.register(builtin_plugins, "tracemill:core", "tracemill")

__all__ = [
    "AnyProxy",
    "BoolProxy",
    "BoundSymbol",
    "CacheInfo",
    "CollectionProxy",
    "DataDependentError",
    "Difference",
    "FloatProxy",
    "FusionExecutor",
    "IntegerProxy",
    "LeakedValueError",
    "MutationError",
    "NumberProxy",
    "OperatorExecutor",
    "OptionError",
    "Pass",
    "PassContext",
    "PassError",
    "PassReport",
    "PluginError",
    "PluginWarning",
    "Printer",
    "PrinterError",
    "Program",
    "ProgramPass",
    "Proxy",
    "Region",
    "Report",
    "SharpEdgeError",
    "SharpEdgeWarning",
    "Symbol",
    "TensorProxy",
    "Trace",
    "TraceError",
    "TracemillError",
    "UnsupportedError",
    "cache_info",
    "diff",
    "executors",
    "fake",
    "hookimpl",
    "jit",
    "last_backward_traces",
    "last_epilogue_traces",
    "last_prologue_traces",
    "last_report",
    "last_traces",
    "passes",
    "printers",
    "register_plugin",
    "substitute",
    "symbol",
    "trace",
    "tracectx",
    "unregister_plugin",
]
