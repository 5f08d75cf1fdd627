"""The directory of a store: how it is opened, its registry, and what is done with files in the background."""
