"""The examples in docstrings run, and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import tracemill as tm


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(tm.__path__, "tracemill.")
    return [importlib.import_module(module.name) for module in found]


EXAMPLES = [
    test
    for module in modules()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module)
    if test.examples
]


def test_there_are_examples_of_what_users_call() -> None:
    names = {test.name.rpartition(".")[2] for test in EXAMPLES}
    assert {"jit", "trace", "tracectx", "symbol", "diff", "TensorProxy"} <= names


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_an_example_is_true(example: doctest.DocTest) -> None:
    said: list[str] = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)
