"""An example of a tracemill plugin: the hooks through which a pass, a printer and two executors come."""

import tracemill as tm
from tracemill_example.blocks import Blocks
from tracemill_example.executor import example
from tracemill_example.multiply_squares import MultiplySquares
from tracemill_example.numbered import NumberedPrinter


@tm.hookimpl
def tracemill_passes():
    return [MultiplySquares()]


@tm.hookimpl
def tracemill_printers():
    return [NumberedPrinter()]


@tm.hookimpl
def tracemill_executors():
    return [example, Blocks()]
