"""What the manifest service does for streams without an owner: prunes tails, reclaims WAL objects."""
