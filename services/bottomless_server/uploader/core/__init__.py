"""What the uploader decides: when a stream is cut, and how much is under way. Pure."""
