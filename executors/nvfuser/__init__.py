"""nvfuser: regions on CUDA tensors as nvFuser's definitions."""
