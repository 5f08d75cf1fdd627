"""The reader's decisions, pure: no await, no I/O, no clock."""
