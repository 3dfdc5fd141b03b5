"""Plugins: who may bring what, how they are found, and what is said when something is wrong."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import tracemill as tm
from tracemill.compiler.plugins import Plugins

EXAMPLE = Path(__file__).parent.parent / "plugin_example"
SOURCES = Path(tm.__file__).parent.parent


class Printer(tm.Printer):
    """A printer like any other."""

    name: ClassVar[str] = "mine"


class BringsPrinter:
    def __init__(self, printer: tm.Printer | None = None) -> None:
        self.printer = printer or Printer()

    @tm.hookimpl
    def tracemill_printers(self) -> list[tm.Printer]:
        return [self.printer]


Distribution = Callable[..., None]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """Installs a distribution with one module that is a plugin, as pip would leave it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str, module: str = "") -> None:
        module = module or name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tracemill]\nplugin = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


PRINTER = """
import tracemill as tm

class Loud(tm.Printer):
    name = {name!r}

@tm.hookimpl
def tracemill_printers():
    return [Loud()]
"""


# Finding


def test_a_plugin_is_found_by_its_entry_point(distribution: Distribution) -> None:
    distribution("example-found", PRINTER.format(name="found"))
    registered = Plugins().printers.registered()["found"]
    assert (registered.plugin, registered.distribution) == ("example-found:plugin", "example-found")
    assert not registered.is_ours


def test_tracemill_s_own_parts_come_through_the_same_hooks() -> None:
    for registry in (tm.passes, tm.printers, tm.executors):
        assert registry.names()
    ours = tm.PLUGINS.passes.registered()["dce"]
    assert (ours.plugin, ours.distribution) == ("tracemill:core", "tracemill")
    assert tm.passes.get("dce") is ours.item


def test_a_plugin_that_does_not_import_is_named_and_the_others_work(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution("example-broken", "import a_module_that_is_not_there")
    distribution("example-works", PRINTER.format(name="works"))
    plugins = Plugins()
    with pytest.warns(
        tm.PluginWarning, match=r"example-broken:plugin.*example-broken.*Module.*a_module"
    ):
        assert "works" in plugins.printers.names()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "works" in plugins.printers.names()  # said once

    monkeypatch.setenv("TRACEMILL_STRICT_PLUGINS", "1")
    strict = Plugins()
    for _ in range(2):  # and not only the first time
        with pytest.raises(tm.PluginError, match="example-broken") as caught:
            strict.printers.names()
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_hook_that_raises_is_like_a_plugin_that_does_not_import(
    distribution: Distribution,
) -> None:
    distribution(
        "example-late",
        "import tracemill as tm\n@tm.hookimpl\ndef tracemill_executors():\n  raise OSError('no driver')",
    )
    plugins = Plugins()
    with pytest.warns(
        tm.PluginWarning, match=r"example-late.*tracemill_executors.*OSError: no driver"
    ):
        plugins.executors.names()


def test_by_hand_and_by_entry_point_counts_once(distribution: Distribution) -> None:
    distribution("example-twice", PRINTER.format(name="twice"))
    plugins = Plugins()
    import example_twice  # type: ignore[import-not-found]

    plugins.register(example_twice)
    plugins.register(example_twice)
    assert plugins.printers.names().count("twice") == 1
    assert plugins.printers.registered()["twice"].distribution == "example-twice"


def test_two_distributions_with_one_name_are_both_named(distribution: Distribution) -> None:
    distribution("example-one", PRINTER.format(name="same"))
    distribution("example-two", PRINTER.format(name="same"))
    plugins = Plugins()
    for _ in range(2):
        with pytest.raises(tm.PluginError, match=r"printers.*'same'.*example-one.*example-two"):
            plugins.printers.get("same")
    assert plugins.passes.registered() is not None  # other kinds go on


# Mistakes


@dataclass(frozen=True)
class SomePass(tm.Pass):
    name: ClassVar[str] = "some_pass"
    stage: ClassVar[str] = "dce"


def returning(hook: str, value: Any) -> Any:
    """A plugin whose hook returns a value."""
    function = tm.hookimpl(lambda self: value)
    return type("Mistaken", (), {hook: function})()


@pytest.mark.parametrize(
    ("hook", "value", "message"),
    [
        (
            "tracemill_passes",
            [SomePass],
            r"SomePass is a class; an instance is wanted: SomePass\(\)",
        ),
        ("tracemill_passes", [Printer()], r"is not a tracemill.Pass"),
        ("tracemill_passes", None, "returned None, not an iterable"),
        ("tracemill_passes", SomePass(), "not an iterable"),
        ("tracemill_printers", [str], "str is a class"),
        ("tracemill_printers", [print], "is not a tracemill.Printer"),
        ("tracemill_printers", [tm.Printer()], "Printer has no name"),
        ("tracemill_executors", [3], "is not an executor, with a method `claim`"),
    ],
)
def test_what_a_hook_returns_is_checked(hook: str, value: Any, message: str) -> None:
    plugins = Plugins()
    plugins.register(returning(hook, value), "mistaken")
    with pytest.raises(tm.PluginError, match=rf"{hook} of plugin 'mistaken'.*{message}"):
        list(plugins.all(hook))


def test_a_misspelt_hook_is_an_error() -> None:
    with pytest.raises(
        tm.PluginError, match=r"'mistaken'.*tracemill_pases.*hooks are tracemill_passes"
    ):
        Plugins().register(returning("tracemill_pases", ()), "mistaken")


def test_a_misspelt_hook_of_a_distribution_is_an_error_each_time(
    distribution: Distribution,
) -> None:
    distribution("example-misspelt", PRINTER.format(name="x").replace("_printers()", "_printer()"))
    plugins = Plugins()
    for _ in range(2):
        with pytest.raises(tm.PluginError, match=r"example-misspelt.*tracemill_printer is no hook"):
            plugins.printers.names()


def test_a_hook_without_its_mark_is_an_error() -> None:
    class Unmarked:
        def tracemill_passes(self) -> list[tm.Pass]:
            return []

    with pytest.raises(
        tm.PluginError, match=r"tracemill_passes is not marked with @tracemill.hookimpl"
    ):
        Plugins().register(Unmarked())


def test_a_hook_with_a_parameter_it_does_not_have_is_an_error() -> None:
    class Wrong:
        @tm.hookimpl
        def tracemill_after_pass(self, programme: Any) -> None: ...

    with pytest.raises(tm.PluginError, match=r"'Wrong'.*tracemill_after_pass[\s\S]*programme"):
        Plugins().register(Wrong())


def test_a_wrapper_cannot_bring_things() -> None:
    class Wraps:
        @tm.hookimpl(wrapper=True)
        def tracemill_passes(self) -> Iterator[None]:
            yield

    with pytest.raises(tm.PluginError, match="cannot be a wrapper"):
        Plugins().register(Wraps())


def test_a_name_that_another_plugin_has_is_an_error() -> None:
    plugins = Plugins()
    plugins.register(BringsPrinter(), "taken")
    with pytest.raises(tm.PluginError, match="taken"):
        plugins.register(BringsPrinter(), "taken")


def test_two_objects_of_one_class_get_names_of_their_own() -> None:
    plugins = Plugins()
    names = [plugins.register(BringsPrinter()) for _ in range(2)]
    assert names == ["BringsPrinter", "BringsPrinter_2"]


# By hand


def test_what_is_registered_by_hand_is_there_until_it_is_taken_out() -> None:
    plugin = BringsPrinter()
    tm.register_plugin(plugin)
    try:
        assert tm.printers.get("mine") is plugin.printer
        fast = tm.jit(torch.sin, printer="mine")
        assert torch.equal(fast(torch.ones(2)), torch.sin(torch.ones(2)))
    finally:
        tm.unregister_plugin(plugin)
    with pytest.raises(
        tm.OptionError, match=r"unknown printer 'mine'; the known ones are 'default'"
    ):
        tm.printers.get("mine")
    with pytest.raises(tm.PluginError, match="not registered"):
        tm.unregister_plugin(plugin)


# The example, installed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with the example installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, folder / "source")
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


PROBE = """
import json, torch, tracemill as tm

def program(x):
  return torch.relu(torch.square(x) + x.square()) - 1

x = torch.linspace(-2, 2, 9)
fast = tm.jit(program, printer="numbered", executors=["example"])
assert torch.equal(fast(x), program(x))
assert torch.equal(fast(x.int()), program(x.int()))
fast(x)
blocks = tm.jit(lambda x: (x.sin() * 2).cos(), executors=["blocks"])
rows = torch.randn(150, 4)
assert torch.equal(blocks(rows), (rows.sin() * 2).cos())
assert "blocks0(" in str(tm.last_traces(blocks)[-1])
assert blocks(rows.t()).stride() == (1, 4)
print(json.dumps({
  "text": str(tm.last_traces(fast)[-1]),
  "passes": [report.name for report in tm.last_report(fast)],
}))
"""


def fresh_process(site: Path, *arguments: str) -> str:
    """What a new Python process prints, with the site folder among its paths."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(site)])}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=site
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_example_is_used(site: Path, golden: Callable[[str, str], None]) -> None:
    found = json.loads(fresh_process(site, "-c", PROBE))
    assert "multiply_squares" in found["passes"]
    golden(found["text"], "example")


def test_the_installed_example_is_listed(site: Path) -> None:
    lines = fresh_process(site, "-m", "tracemill", "plugins").splitlines()
    listed = [line.split(None, 2) for line in lines if "tracemill-example" in line]
    assert [line[:2] for line in listed] == [
        ["multiply_squares", "tracemill-example"],
        ["numbered", "tracemill-example"],
        ["example", "tracemill-example"],
        ["blocks", "tracemill-example"],
    ]
    assert listed[0][2] == "Writes squares as multiplications."


def lines_of_code(path: Path) -> int:
    """The lines of a file that are neither blank, nor comment, nor docstring."""
    text = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            prose.update(range(node.lineno, node.end_lineno + 1))
    return sum(
        number not in prose and bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(text.splitlines(), start=1)
    )


@pytest.mark.parametrize(
    ("file", "limit"),
    [("multiply_squares", 15), ("numbered", 10), ("executor", 5), ("blocks", 25)],
)
def test_the_example_is_short(file: str, limit: int) -> None:
    assert 0 < lines_of_code(EXAMPLE / "tracemill_example" / f"{file}.py") <= limit
