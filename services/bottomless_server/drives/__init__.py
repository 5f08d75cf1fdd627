"""Drives: where objects are kept, one attempt a call. One port (bottomless.drives.base), a few modules for each store."""
