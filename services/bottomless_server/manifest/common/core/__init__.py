"""Pure parts that every room of the manifest service uses."""
