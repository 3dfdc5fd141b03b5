"""What stands in the place of PyTorch's own while a program is interpreted."""
