"""The life of a process: its parts, its front, its start and stop."""
