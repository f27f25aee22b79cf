"""Shard formats: one file each, found through the registry in :mod:`torchzephon.data.formats.registry`."""
