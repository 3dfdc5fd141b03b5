"""Gradients inside of programs: `torch.autograd.grad`, `backward`, `.grad` and optimisers."""
