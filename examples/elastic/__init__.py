"""The parts of train_elastic.py, one idea a file."""
