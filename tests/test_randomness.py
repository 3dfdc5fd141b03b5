"""Random numbers: the same seed gives eager's values and leaves eager's states, at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.programs import computation_inputs, run_text

X = torch.arange(6.0).reshape(2, 3)


def assert_draws_like_eager(fn: Callable[..., Any], *args: Any, calls: int = 3) -> Any:
    """Calls both several times in a row from one seed; each value and the state after each must be the same bits."""
    jitted = tm.jit(fn, printer="minimal")
    torch.manual_seed(11)
    wanted = [(fn(*args), torch.get_rng_state()) for _ in range(calls)]
    torch.manual_seed(11)
    for value, state in wanted:
        torch.testing.assert_close(jitted(*args), value, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
    return jitted


def seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.rand(3)


def forks(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.rand(3)
    return x + noise + torch.rand(3)


def saves_and_restores(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = torch.get_rng_state()
    one = torch.rand(3)
    torch.set_rng_state(state)
    return x + one, torch.rand(3)


def makes_a_generator(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.manual_seed(5)
    return x + torch.rand(3, generator=generator) + torch.randn(3, generator=generator)


def clones_a_generator(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(5)
    other = generator.clone_state()
    generator.set_state(other.get_state())
    return x + torch.rand(3, generator=generator) - torch.rand(3, generator=other)


def draws_for_nothing(x: torch.Tensor) -> torch.Tensor:
    torch.rand(2)
    return x + torch.rand(3)


def draws_twice(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(3) - torch.rand(3) + x


PROGRAMS: dict[str, Callable[..., Any]] = {
    "seeds": seeds,
    "forks": forks,
    "saves_and_restores": saves_and_restores,
    "makes_a_generator": makes_a_generator,
    "clones_a_generator": clones_a_generator,
    "draws_for_nothing": draws_for_nothing,
    "draws_twice": draws_twice,
    "dropout": lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)) + x,
    "in_place": lambda x: torch.empty(3).normal_() + x,
    "like": lambda x: torch.randn_like(x) * torch.randint_like(x, 9),
    "permutation": lambda x: x[:, torch.randperm(3)],
    "multinomial": lambda x: torch.multinomial(x + 1, 2) + 0,
    "initial_seed": lambda x: x + torch.initial_seed(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_states_are_eagers_at_every_call(name: str) -> None:
    assert_draws_like_eager(PROGRAMS[name], X)


@pytest.mark.parametrize("name", ["seeds", "forks", "makes_a_generator"])
def test_states_print_as_plain_torch_and_run_alone(
    name: str, golden: Callable[[str, str], None]
) -> None:
    jitted = tm.jit(PROGRAMS[name], printer="minimal")
    torch.manual_seed(1)
    wanted = jitted(X)
    text = tm.last_traces(jitted)[-1].text("minimal")

    golden(text, name)
    torch.manual_seed(1)
    assert torch.equal(run_text(text, computation_inputs(jitted, X)), wanted)


def test_tracing_draws_nothing() -> None:
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    own = generator.get_state()
    tm.trace(lambda x, g: torch.rand(3, generator=g) + x + torch.rand(3), X, generator)

    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(generator.get_state(), own)


def test_a_generator_is_an_argument_like_a_tensor() -> None:
    def fn(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(3, generator=generator) + torch.randn(3, generator=generator)

    jitted = tm.jit(fn)
    for seed in (1, 2, 3):
        mine, eagers = (torch.Generator().manual_seed(seed) for _ in range(2))
        for _ in range(2):
            torch.testing.assert_close(jitted(X, mine), fn(X, eagers), rtol=0, atol=0)
        assert torch.equal(mine.get_state(), eagers.get_state())
    assert tm.cache_info(jitted) == tm.CacheInfo(hits=5, misses=1, entries=1)


def test_one_generator_twice_is_another_program_than_two() -> None:
    def fn(one: torch.Generator, two: torch.Generator) -> torch.Tensor:
        one.manual_seed(4)
        two.manual_seed(5)
        return torch.rand(3, generator=one) - torch.rand(3, generator=two)

    jitted = tm.jit(fn)
    same = torch.Generator()
    for one, two in ((same, same), (torch.Generator(), torch.Generator()), (same, same)):
        torch.testing.assert_close(jitted(one, two), fn(one, two), rtol=0, atol=0)


GENERATOR = torch.Generator()


def test_a_global_generator_goes_on_at_each_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=GENERATOR)

    jitted = tm.jit(fn)
    GENERATOR.manual_seed(1)
    wanted = [fn(X) for _ in range(3)]
    GENERATOR.manual_seed(1)
    for value in wanted:
        assert torch.equal(jitted(X), value)


def test_seeding_a_global_generator_is_refused_and_leaves_it_alone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        GENERATOR.manual_seed(3)
        return x + torch.rand(3, generator=GENERATOR)

    GENERATOR.manual_seed(1)
    state = GENERATOR.get_state()
    with pytest.raises(tm.UnsupportedError, match="pass the generator"):
        tm.jit(fn)(X)
    assert torch.equal(GENERATOR.get_state(), state)


manual_seed = torch.manual_seed


def test_a_seed_by_a_name_imported_from_torch() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        manual_seed(3)
        return x + torch.rand(3)

    assert_draws_like_eager(fn, X)


@pytest.mark.parametrize("fn", [lambda: torch.seed(), lambda: torch.Generator().seed()])
def test_a_seed_from_the_system_is_refused(fn: Callable[[], int]) -> None:
    state = torch.get_rng_state()
    with pytest.raises(tm.UnsupportedError, match="manual_seed"):
        tm.jit(lambda x: x + fn())(X)
    assert torch.equal(torch.get_rng_state(), state)


def test_pytorchs_names_are_its_own_again_after_an_error() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        raise ValueError("mine")

    before = torch.manual_seed, torch.Generator
    with pytest.raises(ValueError, match="mine"):
        tm.jit(fails)(X)
    assert before == (torch.manual_seed, torch.Generator)
    assert torch.initial_seed() == 3


def test_draws_in_place_of_whole_numbers() -> None:
    """PyTorch's name of that draw, `random.from`, is none that Python takes."""

    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(3).random_(2, 9) + torch.empty(3).random_(4) + torch.empty(3).random_()

    jitted = assert_draws_like_eager(draws, X)
    assert 'getattr(torch.ops.aten.random, "from")' in str(tm.last_traces(jitted)[-1])
