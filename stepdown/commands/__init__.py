"""What people type: one file per command, its settings and its verb."""
