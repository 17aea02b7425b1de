"""How good, how sure."""
