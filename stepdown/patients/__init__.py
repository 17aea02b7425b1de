"""A bedside that can be simulated."""
