"""Offsets that consumers have committed, their snapshots in the bucket, and who of a group holds what."""
