"""Careful weaning from a micro-axial heart pump, studied on simulated patients."""

import os

__version__ = "0.1.0"

# JAX would take three quarters of a GPU's memory at once; ours may have neighbors.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
