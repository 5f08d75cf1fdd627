"""What ingest answers to producers over HTTP."""
