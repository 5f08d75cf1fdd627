"""Drives: where objects are kept, one attempt a call. One port (bottomless.drives.base), some modules a store."""
