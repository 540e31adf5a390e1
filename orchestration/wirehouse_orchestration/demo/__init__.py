"""What each protocol brings to the demo: captures, parts of the closing page and queries to try."""
