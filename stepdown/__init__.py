"""Careful weaning from a micro-axial heart pump, studied on simulated patients."""

__version__ = "0.1.0"
