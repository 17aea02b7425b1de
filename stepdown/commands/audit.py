"""`stepdown audit verify`: whether the audit of an app is whole."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from stepdown.app.audit import verify


@dataclass(frozen=True)
class AuditConfig:
    """Verify the audit of an app: every entry, their order, and the end."""

    folder: Positional[Path]  # the app's state folder, such as runs/demo-app


def verify_audit(config: AuditConfig) -> int:
    """Print what verification found; 1 if the audit cannot be trusted."""
    found = verify(config.folder)
    if found.valid:
        told = f"{found.entries} entries, each one follows the one before: the audit is whole."
    else:
        told = f"{found.problem}\n{found.entries} entries before it are whole."
    sys.stdout.write(f"{told}\n")
    return 0 if found.valid else 1
