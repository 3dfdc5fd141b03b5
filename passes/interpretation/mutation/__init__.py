"""Writes to tensors: what may be written to, what memory they share, and which new values come of it."""
