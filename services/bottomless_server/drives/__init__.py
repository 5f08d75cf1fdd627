"""Drives: where objects are kept. One port (bottomless.drives.base), a module for each kind of store."""
