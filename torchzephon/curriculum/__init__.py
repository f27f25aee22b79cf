"""The curriculum: pure functions from a position to sample pointers. numpy only, no I/O, no torch."""
