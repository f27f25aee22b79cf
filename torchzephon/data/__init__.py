"""Datasets, shards, and the columns that flow between nodes."""
