"""The parts of demo.py, one idea a file."""
