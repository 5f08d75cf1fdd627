"""Staged batches: stored first, made records of the stream by one commit."""
