"""The ``torchzephon`` command: one file each verb."""
