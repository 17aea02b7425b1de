"""Recordings made trustworthy."""
