"""Offsets that named consumers have committed, and their snapshots in the bucket."""
