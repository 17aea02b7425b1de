"""Who sets the level: rules, and policies learned from records."""
