"""What a trace is, and how one call flows."""
