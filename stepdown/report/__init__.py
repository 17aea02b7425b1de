"""What a human reads: tables, figures, cards, one page."""
