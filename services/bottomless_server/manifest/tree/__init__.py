"""The tree of a stream: its one mutator, what it publishes, and how it is found."""
