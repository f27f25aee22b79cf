"""Packing algorithms: pure functions and small machines on lengths and flat arrays."""
