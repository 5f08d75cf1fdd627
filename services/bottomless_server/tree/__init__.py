"""The manifest as an M-way tree: pure functions on nodes, in numpy and never entry by entry."""
