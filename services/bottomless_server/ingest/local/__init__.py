"""Streams whose newest records are on the disk of this node: append, free, hand over."""
