"""Encoders: from texts to token ids and offsets, as fast as is exact."""
