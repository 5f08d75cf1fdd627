"""Drives, as a user needs them: the port of an object store, and what an answer of S3 means."""
