"""Benchmarks of torchzephon and of other loaders; see README.md."""
