"""The commands: one file for each, with its frozen config and its verb."""
