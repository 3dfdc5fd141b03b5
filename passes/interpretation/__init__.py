"""Interpretation: CPython runs the program on stand-ins, and PyTorch says what each call does."""
