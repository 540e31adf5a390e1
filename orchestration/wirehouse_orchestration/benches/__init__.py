"""What `make bench` measures, a module a protocol."""
