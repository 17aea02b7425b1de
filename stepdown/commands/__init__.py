"""The commands, one file each: its settings and its verb."""
