"""What each protocol brings to `make bench`."""
