"""Ingest: owns the tails of streams. Takes appends, makes them durable, serves and feeds what is new."""
