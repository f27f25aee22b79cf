"""Lanes and ranks: assignment, rounds, states, loaders."""
