"""Have we seen this before? Densities of recorded decisions, and the guardian made of them."""
