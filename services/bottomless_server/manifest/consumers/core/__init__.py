"""Decisions about offsets of consumers, and who of a group holds which partition: pure."""
