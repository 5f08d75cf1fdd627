"""Bytes to values and back: pure codecs, one format per file. Their spec is docs/formats.md."""
