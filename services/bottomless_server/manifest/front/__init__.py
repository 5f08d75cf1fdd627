"""What the manifest service answers, to the public and to other services."""
