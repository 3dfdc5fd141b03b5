"""inductor: regions compiled by PyTorch's own code generator."""
