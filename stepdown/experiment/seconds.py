"""Seconds of the jobs of a run where they were measured, by preset."""

from typing import Any

MEASURED: dict[str, dict[str, Any]] = {}
