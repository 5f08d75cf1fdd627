"""What ingest decides, without I/O, clocks or randomness."""
