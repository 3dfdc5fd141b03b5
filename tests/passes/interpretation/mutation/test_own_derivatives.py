"""Operations that only functional programs have: their derivatives are those of the writes that they stand for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tracemill as tm


class Spectral(torch.nn.Module):
    """A layer in Fourier space, which writes to parts of a complex tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 2, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :3] = torch.einsum("bix,iox->box", spectrum[:, :, :3], self.weight)
        out[..., -1] = self.weight.sum()
        out[0] *= self.weight[0, 0, 0].conj()
        return torch.fft.irfft(out, n=x.size(-1))


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_parts_of_complex_tensors_are_written_to(cache: str) -> None:
    """PyTorch has no derivative of `slice_scatter` and `select_scatter` for complex numbers."""
    module = Spectral()
    twin = copy.deepcopy(module)
    jitted = tm.jit(module, cache=cache)
    for shape in ((3, 2, 8), (2, 2, 10)):
        x = torch.randn(shape, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        got, want = jitted(x), twin(other)
        for value in (got, want):
            value.square().sum().backward()

        torch.testing.assert_close(got, want)
        torch.testing.assert_close(x.grad, other.grad)
        assert module.weight.grad is not None
        torch.testing.assert_close(module.weight.grad, twin.weight.grad)


def test_parts_written_without_gradients_stay_one_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y: Any = x * 2
        y[0] = 1j
        return y

    x = torch.randn(2, 3, dtype=torch.complex64)
    jitted = tm.jit(program)

    assert torch.equal(jitted(x), program(x))
    assert "torch.select_scatter(" in tm.last_traces(jitted)[-1].text("minimal")
