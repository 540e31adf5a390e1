"""`make bench`: the runner, and one module of benchmarks per protocol."""
