"""Streams as a whole: declare, describe, delete, verify."""
