"""Bytes to values and back: pure codecs, one format a file; docs/formats.md is their spec."""
