"""Streams without an owner: appends of many gather in one object, and one commit gives them offsets."""
