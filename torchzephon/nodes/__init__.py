"""The nodes: torchdata BaseNodes whose state dicts are cursors."""
