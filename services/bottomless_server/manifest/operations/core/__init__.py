"""Whose turn it is among long operations: pure."""
