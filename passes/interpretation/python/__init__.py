"""What a program reads of Python, which the prologue checks, and what it writes there, which the epilogue does."""
