"""Turns among long operations: pure."""
