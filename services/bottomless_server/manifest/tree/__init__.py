"""The tree of a stream: how changes of it are published, and how it is found."""
