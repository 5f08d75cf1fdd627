"""Decisions of a node about ownership, clocks and room: pure."""
