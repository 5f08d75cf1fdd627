"""What a stream remembers of its producers and keys, made of committed chunks and nothing else. Pure."""
