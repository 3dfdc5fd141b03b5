"""Tensors without data: programs are compiled for devices and sizes that are not at hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm


def test_a_description_makes_a_tensor_of_its_metadata() -> None:
    tensor = tm.fake("cuda:0 bf16[4, 8]")
    assert (tensor.device, tensor.dtype) == (torch.device("cuda:0"), torch.bfloat16)
    assert tensor.shape == (4, 8)
    assert tm.fake("f32[]").device.type == "cpu"
    assert tm.fake("i64[3]", device="cuda:1").device == torch.device("cuda:1")


@pytest.mark.parametrize("text", ["", "4, 8", "f31[2]", "cuda:0 f32", "f32[2, x]"])
def test_what_describes_no_tensor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="describes no tensor"):
        tm.fake(text)


def test_a_program_is_traced_for_a_device_that_is_not_there() -> None:
    text = tm.trace(
        lambda x: (x + torch.arange(8, device=x.device)).sum(), tm.fake("cuda:0 f32[4, 8]")
    ).text()
    assert '# x: "cuda:0 f32[4, 8]"' in text
    assert '"cuda:0 f32[]"' in text


def test_a_jitted_function_gives_fakes_for_fakes_and_values_for_values() -> None:
    fast = tm.jit(lambda x: torch.cat([x, torch.zeros(2, 8, device=x.device)]) * 2)
    made = fast(tm.fake("cuda:0 f32[4, 8]"))
    assert (made.shape, made.device) == ((6, 8), torch.device("cuda:0"))
    real = fast(torch.ones(4, 8))
    assert torch.equal(real[:4], torch.full((4, 8), 2.0))
    assert tm.cache_info(fast).misses == 2


def test_a_module_is_copied_without_its_data() -> None:
    module = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        .requires_grad_(False)
        .eval()
    )
    module[0].bias = module[1].bias  # tied
    copy = tm.fake(module, device="cuda:0")
    assert copy[0].bias is copy[1].bias
    assert {tensor.device.type for tensor in copy.state_dict().values()} == {"cuda"}
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"cpu"}
    fast = tm.jit(copy)
    assert fast(tm.fake("cuda:0 f32[2, 4]")).shape == (2, 4)


def test_structures_are_copied_and_other_values_kept() -> None:
    made = tm.fake({"x": torch.ones(2, 3).t(), "rate": 0.5, "pair": (torch.ones(1), None)})
    assert made["x"].stride() == (1, 3)
    assert made["rate"] == 0.5
    assert made["pair"][1] is None


def test_training_of_fakes() -> None:
    weight = tm.fake("f32[3]", requires_grad=True)
    fast = tm.jit(lambda x, w: (x * w).sum())
    fast(tm.fake("f32[2, 3]"), weight).backward()
    assert weight.grad is not None
    assert weight.grad.shape == (3,)
    assert "torch.Tensor.expand" in tm.last_backward_traces(fast)[-1].text()


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a build with CUDA")
def test_a_backward_for_a_device_that_is_not_there_is_that_of_one_that_is() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(F.layer_norm(F.linear(x, w), (8,)))
        return F.cross_entropy(hidden + x.mean(-1, keepdim=True), target)

    texts: list[str] = []
    for device in ("cpu", "cuda:0"):
        x = tm.fake("f32[4, 8]", device=device, requires_grad=True)
        w = tm.fake("f32[8, 8]", device=device, requires_grad=True)
        fast = tm.jit(fn, executors=["torch"])
        fast(x, w, tm.fake("i64[4]", device=device))
        texts.append(tm.last_backward_traces(fast)[-1].text().replace("cuda:0", "cpu"))
    assert "native_layer_norm_backward" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="of builds without CUDA")
def test_training_on_a_device_that_autograd_does_not_know_is_refused() -> None:
    """PyTorch ends the process."""
    with pytest.raises(tm.UnsupportedError, match="built without CUDA"):
        tm.fake("cuda:0 f32[3]", requires_grad=True)
    with pytest.raises(tm.UnsupportedError, match="built without CUDA"):
        tm.fake(torch.nn.Linear(2, 2), device="cuda:0")
