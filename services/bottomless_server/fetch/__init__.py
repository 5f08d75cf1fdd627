"""Bytes over HTTP, received in the memory in which they stay: of peers, and of S3 stores."""
