"""Usage: how executed code uses a name of the state: whether it reads it, only counts it up, or only appends to it."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType

_STORES = (
    "STORE_ATTR",
    "STORE_GLOBAL",
    "STORE_DEREF",
    "STORE_NAME",
    "DELETE_ATTR",
    "DELETE_GLOBAL",
)
_BETWEEN = ("SWAP", "ROT_TWO", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "COPY", "NOP")


class Usage:
    """What the executed code does with names.

    others: names that code mentions which is not looked into, such as that of torch.nn's modules.
    """

    def __init__(self, codes: Iterable[CodeType], others: Iterable[str], *, whole: bool) -> None:
        self._codes = list(codes)
        self._others = frozenset(others)
        self._whole = whole
        self._instructions: dict[int, list[dis.Instruction]] = {}

    def reads(self, name: str) -> bool:
        """Whether the old value of an attribute or variable may have been read: also where code unseen wrote it."""
        return (
            self._is_hidden(name)
            or not self._stores(name)
            or any(not _is_set_first(code, name) for code in self._codes_loading(name))
        )

    def only_counts(self, name: str) -> bool:
        """Whether each read, and each write, is that of `x.name += 1` or `x.name = x.name + 1`."""
        loads = list(self._loads(name))
        return (
            not self._is_hidden(name)
            and self._stores(name) == len(loads) > 0
            and all(_is_count(code, position, name) for code, position in loads)
        )

    def only_appends(self, name: str) -> bool:
        """Whether each read is that of `x.name.append(...)`."""
        return not self._is_hidden(name) and all(
            code[position + 1].argval == "append" for code, position in self._loads(name)
        )

    def _is_hidden(self, name: str) -> bool:
        if self._whole or name in self._others:
            return True
        return any(
            name == constant or (type(constant) in (tuple, frozenset) and name in constant)
            for code in self._codes
            for constant in code.co_consts
        )

    def _stores(self, name: str) -> int:
        """How many instructions write or delete the name."""
        return sum(
            instruction.argval == name and instruction.opname in _STORES
            for code in self._codes
            for instruction in self._of(code)
        )

    def _loads(self, name: str) -> Iterator[tuple[list[dis.Instruction], int]]:
        for code in self._codes:
            if name in code.co_names or name in code.co_freevars or name in code.co_cellvars:
                instructions = self._of(code)
                for position, instruction in enumerate(instructions):
                    if instruction.argval == name and _is_load(instruction):
                        yield instructions, position

    def _codes_loading(self, name: str) -> Iterator[list[dis.Instruction]]:
        found = None
        for instructions, _ in self._loads(name):
            if instructions is not found:
                found = instructions
                yield instructions

    def _of(self, code: CodeType) -> list[dis.Instruction]:
        known = self._instructions.get(id(code))
        if known is None:
            known = self._instructions[id(code)] = list(dis.get_instructions(code))
        return known


def _is_load(instruction: dis.Instruction) -> bool:
    """Whether an instruction reads the name: not `LOAD_CLOSURE`, which hands a variable to an inner function."""
    name = instruction.opname
    return name.startswith("LOAD_") and name not in ("LOAD_CLOSURE", "LOAD_CONST", "LOAD_FAST")


def _is_set_first(code: list[dis.Instruction], name: str) -> bool:
    """Whether code sets a name before it reads it, of the same variable's object: `x.name = ...; use(x.name)`."""
    about = [
        position
        for position, instruction in enumerate(code)
        if instruction.argval == name and (_is_load(instruction) or instruction.opname in _STORES)
    ]
    first = code[about[0]]
    before = code[: about[0]]
    if not first.opname.startswith("STORE_") or any(map(_branches, before)):
        return False
    if first.opname != "STORE_ATTR":
        return True
    owners = {_owner(code, position) for position in about}
    (owner,) = owners if len(owners) == 1 else (None,)
    return owner is not None and not any(
        instruction.opname.startswith("STORE_FAST") and owner in _names_of(instruction)
        for instruction in code[about[0] :]
    )


def _names_of(instruction: dis.Instruction) -> tuple[str, ...]:
    """The local variables that an instruction is about; some are about two."""
    value = instruction.argval
    return value if isinstance(value, tuple) else (value,)


def _branches(instruction: dis.Instruction) -> bool:
    """Whether code goes on elsewhere than at the next line, or comes from elsewhere."""
    jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
    return jumps or instruction.is_jump_target


def _owner(code: list[dis.Instruction], position: int) -> str | None:
    """The local variable whose object's attribute an instruction is about."""
    position -= 1
    while code[position].opname == "CACHE":
        position -= 1
    loads = code[position].opname.startswith("LOAD_FAST")
    return _names_of(code[position])[-1] if loads else None


def _is_count(code: list[dis.Instruction], position: int, name: str) -> bool:
    following = [item for item in code[position + 1 : position + 8] if item.opname != "CACHE"]
    if len(following) < 3 or following[0].opname not in ("LOAD_CONST", "LOAD_SMALL_INT"):
        return False
    if type(following[0].argval) is not int or following[1].argrepr not in ("+", "+=", "-", "-="):
        return False
    for item in following[2:]:
        if item.opname in _STORES:
            return item.argval == name
        if item.opname not in (*_BETWEEN, "LOAD_ATTR") or item.argval == name:
            return False
    return False
