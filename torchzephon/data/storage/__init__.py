"""Access to files on local disks and fsspec storage, and where this machine keeps copies and indexes."""
