"""The one task that changes a stream's manifest, and all that it can be asked to do."""
