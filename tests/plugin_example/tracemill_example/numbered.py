"""numbered: the program with the number of each operation beside it."""

import tracemill as tm


class NumberedPrinter(tm.Printer):
    """The program with the number of each operation beside it."""

    name = "numbered"

    def beside(self, bsym: tm.BoundSymbol, trace: tm.Trace) -> str:
        return str(trace.bound_symbols.index(bsym) + 1)
