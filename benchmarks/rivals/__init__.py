"""Other loaders, one file each, set up as their documentation says; each is skipped where it is not installed."""
