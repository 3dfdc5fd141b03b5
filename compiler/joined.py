"""One function for a whole call: the texts of a specialisation's traces as one body.

The texts

    def prologue(x, y):
      tensorcheck.check(x, y) or mismatch("metadata of the tensors")
      return (x, y)

    def computation(x, y):
      t0 = torch.Tensor.add(x, y)
      t1 = torch.Tensor.sin(t0)
      return t1

run as

    def call(x, y):
      try:
        tensorcheck.check(x, y) or mismatch("metadata of the tensors")
      except Exception as error:
        raise Mismatch(str(error)) from error
      t0 = torch.Tensor.add(x, y)
      t1 = t0.sin()
      return t1

A call then makes one frame, packs nothing, and looks up once what its checks call. Every line keeps its place in the
text that it comes from, so tracebacks and pdb show what people read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracemill.compiler.codegen import define
from tracemill.compiler.guards import Mismatch
from tracemill.compiler.paths import note_effects
from tracemill.compiler.peephole import AsMethods, HandedTogether, LookedUp
from tracemill.printers.base import Code

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Global, ast.Return)


class Unjoinable(Exception):
    """Raised for texts that do not go together in one function; they then run one after the other."""


def joined(
    prologue: Code,
    rest: Sequence[Code] | Callable[..., Any],
    rebuild: Callable[[Any], Any] | None,
    parameters: Sequence[str],
) -> Callable[..., Any]:
    """The function of a call: checks its arguments, raising Mismatch, then computes its result.

    rest: the texts of the computation and, where there is one, of the epilogue; or a function to call in their place.
    rebuild: from what the computation returns to what the call returns; None when they are the same.
    parameters: the names of the call's parameters, where the prologue's text may use others.

    Raises Unjoinable where a name means different things in two texts, or a printer's text has another form.
    """
    join = _Join()
    first = join.add(prologue, parameters)
    checks = list(first.body)
    lines: list[ast.stmt] = []
    if isinstance(rest, Sequence):
        lines += join.computed(first, [join.add(code) for code in rest], rebuild, checks)
    else:
        lines.append(ast.Return(ast.Call(join.bind("run", rest), _items(first.result), [])))
        HandedTogether(join.bind).rewrite(checks, lines)
    if checks:
        looked_up = LookedUp(join.bound, join.bind)
        lines.insert(0, _guarded([looked_up.visit(line) for line in checks]))
    made = ast.FunctionDef("call", first.function.args, lines, [])
    return join.compiled(ast.copy_location(made, first.function))


@dataclass(eq=False)
class _Text:
    """A text taken apart: what stands above the function, and the function's parameters, lines and result.

    local, free: the names that the function gives values to, and the others that it reads.
    """

    above: list[ast.Import | ast.ImportFrom]
    function: ast.FunctionDef
    body: list[ast.stmt]
    result: ast.expr
    local: set[str]
    free: set[str]

    @classmethod
    def of(cls, code: Code) -> _Text:
        *above, function = ast.parse(code.source).body
        imports = [line for line in above if isinstance(line, ast.Import | ast.ImportFrom)]
        if not isinstance(function, ast.FunctionDef) or len(imports) != len(above):
            raise Unjoinable("the text is more than a function")
        *body, last = function.body
        if any(ast.unparse(item) != "torch.no_grad()" for item in function.decorator_list):
            raise Unjoinable("the function has a decorator of its own")
        if not isinstance(last, ast.Return) or any(
            isinstance(node, _NESTED) for line in body for node in ast.walk(line)
        ):
            raise Unjoinable("the function is not a straight line")
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        local = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
        local |= {arg.arg for arg in _parameters(function.args)}
        free = {name.id for name in names} - local
        return cls(imports, function, body, last.value or ast.Constant(None), local, free)

    @property
    def parameters(self) -> list[str]:
        return [arg.arg for arg in _parameters(self.function.args)]

    def rename(self, parameters: Sequence[str]) -> None:
        """Gives the parameters other names; the lines keep theirs."""
        pairs = list(zip(_parameters(self.function.args), parameters, strict=True))
        changed = [(arg, name) for arg, name in pairs if arg.arg != name]
        if any(name in self.local | self.free for _, name in changed):
            raise Unjoinable("a parameter's name has a meaning of its own in the text")
        values = [ast.Name(name, ast.Load()) for _, name in changed]
        self.body[:0] = _handed(values, [arg.arg for arg, _ in changed])
        for arg, name in changed:
            arg.arg = name
            self.local.add(name)


@dataclass(eq=False)
class _Join:
    """Texts that are being joined: their lines stand one after the other in `sources`.

    bound: the objects that free names stand for. imported: the module and the name there of each imported free name.
    """

    sources: list[str] = field(default_factory=list)
    texts: list[_Text] = field(default_factory=list)
    bound: dict[str, Any] = field(default_factory=lambda: {"Mismatch": Mismatch})
    imported: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    def add(self, code: Code, parameters: Sequence[str] | None = None) -> _Text:
        """A text's parts, its line numbers moved to its place."""
        text = _Text.of(code)
        if parameters is not None:
            text.rename(parameters)
        if text.local & _GUARD or any(
            text.free & other.local or other.free & text.local for other in self.texts
        ):
            raise Unjoinable("a name is a variable in one text and an object in another")
        clashes = [
            name
            for name, value in code.bound.items()
            if self.bound.setdefault(name, value) is not value
        ]
        for line in text.above:
            module = line.module if isinstance(line, ast.ImportFrom) else None
            for alias in line.names:
                name, origin = alias.asname or alias.name, (module, alias.name)
                clashes += [name] if self.imported.setdefault(name, origin) != origin else []
        clashes += self.bound.keys() & self.imported.keys()
        if clashes:
            raise Unjoinable(f"{clashes[0]} is another object in each text")
        offset = sum(source.count("\n") for source in self.sources)
        for line in (*text.above, text.function):
            ast.increment_lineno(line, offset)
        self.sources.append(code.source)
        self.texts.append(text)
        return text

    def bind(self, wanted: str, value: Any) -> ast.Name:
        """A name for an object that no text has a name for."""
        used = {name for text in self.texts for name in text.local | text.free}
        while wanted in used or wanted in self.bound:
            wanted += "_"
        self.bound[wanted] = value
        return ast.Name(wanted, ast.Load())

    def computed(
        self,
        prologue: _Text,
        texts: Sequence[_Text],
        rebuild: Callable[[Any], Any] | None,
        checks: list[ast.stmt],
    ) -> list[ast.stmt]:
        """The lines of the computation and the epilogue; what they take from the prologue goes to `checks`."""
        computation, *epilogues = texts
        checks.extend(_handed(_items(prologue.result), computation.parameters))
        lines = AsMethods.of(computation.body)
        result = computation.result
        for epilogue in epilogues:
            result, written = _items(result)
            lines += _handed([result], [kept := self.bind("returned", None).id])
            lines += _handed(_items(written), epilogue.parameters)
            if epilogue.body:
                lines.append(_noting(epilogue.body, self.bind("note_effects", note_effects).id))
            result = ast.Name(kept, ast.Load())
            if ast.unparse(epilogue.result) != "None":
                result = epilogue.result  # views of what was computed
        if rebuild is not None:
            result = ast.Call(self.bind("rebuild", rebuild), [result], [])
        return [*lines, ast.Return(result)]

    def compiled(self, function: ast.FunctionDef) -> Callable[..., Any]:
        """The function, under the texts' own imports."""
        above = [line for text in self.texts for line in text.above]
        module = ast.fix_missing_locations(ast.Module([*above, function], []))
        return define(Code("".join(self.sources), self.bound), function.name, module)


_GUARD = {"Exception", "Mismatch", "str"}


def _guarded(checks: list[ast.stmt]) -> ast.stmt:
    """The lines, any failure of which says that the specialisation does not fit."""
    text = "try: pass\nexcept Exception as error: raise Mismatch(str(error)) from error"
    (guard,) = ast.parse(text).body
    assert isinstance(guard, ast.Try)
    guard.body = checks
    return guard


def _noting(lines: list[ast.stmt], note: str) -> ast.stmt:
    """The lines of an epilogue, any failure of which comes when the call has begun to write."""
    (guard,) = ast.parse(f"try: pass\nexcept Exception as error: {note}(error); raise").body
    assert isinstance(guard, ast.Try)
    guard.body = lines
    return guard


def _parameters(args: ast.arguments) -> Iterator[ast.arg]:
    yield from (*args.posonlyargs, *args.args)
    if args.vararg is not None:
        yield args.vararg
    yield from args.kwonlyargs
    if args.kwarg is not None:
        yield args.kwarg


def _items(value: ast.expr) -> list[ast.expr]:
    if not isinstance(value, ast.Tuple):
        raise Unjoinable("the text does not return its values one by one")
    return value.elts


def _handed(values: Sequence[ast.expr], names: Sequence[str]) -> list[ast.stmt]:
    """The line that hands values over to a text that knows them by names of its own."""
    if len(values) != len(names):
        raise Unjoinable("the texts do not fit")
    changed = [
        (name, value)
        for name, value in zip(names, values, strict=True)
        if not (isinstance(value, ast.Name) and value.id == name)
    ]
    if not changed:
        return []
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name, _ in changed]
    values = [value for _, value in changed]
    if len(changed) == 1:
        return [ast.Assign(targets, values[0])]
    return [ast.Assign([ast.Tuple(targets, ast.Store())], ast.Tuple(values, ast.Load()))]
