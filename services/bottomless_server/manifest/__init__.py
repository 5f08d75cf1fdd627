"""The manifest service: which streams exist, and what object storage holds of each."""
