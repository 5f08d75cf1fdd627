"""Decisions about local streams: pure."""
