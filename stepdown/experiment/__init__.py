"""One command for the whole journey: jobs that are made once, tables, figures, one report."""
