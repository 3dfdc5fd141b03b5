"""Executor fusion: bound symbols go to executors, alone or in regions, and values are freed after their last use."""
