"""What can be asked for on the command line: one file per command, its settings and its verb."""
