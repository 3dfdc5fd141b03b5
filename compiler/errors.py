"""The errors that tracemill raises, each a subclass of the closest builtin."""

from __future__ import annotations


class TracemillError(Exception):
    """Base of every error that tracemill itself raises."""


class UnsupportedError(TracemillError, NotImplementedError):
    """Raised, before anything has run, for a program that tracemill cannot compile faithfully."""


class DataDependentError(UnsupportedError):
    """Raised when Python asks for the value of a tensor that depends on an input."""


class UninitialisedError(UnsupportedError):
    """Raised where a program meets a parameter that has no shape yet; the call that gives it one runs in eager."""


class MutationError(UnsupportedError):
    """Raised for a write that the compiled program could not repeat at each call."""


class LeakedValueError(TracemillError, RuntimeError):
    """Raised when a value of the oracle or of an interpretation escapes from it."""


class SharpEdgeError(UnsupportedError):
    """Raised under sharp_edges="error", before it is made, for a call that no check can keep faithful."""


class SharpEdgeWarning(UserWarning):
    """Warns, under sharp_edges="warn", of a call that no check can keep faithful."""


class OptionError(TracemillError, ValueError):
    """Raised for an unknown option, printer, executor, stage or cache mode; lists the known ones."""


class TraceError(TracemillError, ValueError):
    """Raised for a trace that is not well formed; its text shows the trace with the line marked."""


class PassError(TracemillError, RuntimeError):
    """Raised when a pass fails; names the pass, the plugin and the stage."""


class PluginError(TracemillError, RuntimeError):
    """Raised for a plugin that cannot be registered; names the plugin and its distribution."""


class PluginWarning(UserWarning):
    """Given for a plugin that does not load; names it and the exception. Everything else works."""


class PrinterError(TracemillError, RuntimeError):
    """Raised when a printer fails or prints text that is not the program; names the printer."""
