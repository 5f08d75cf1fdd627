"""Decisions about streams without an owner: pure."""
