"""The broker contract without I/O: what is asked of several streams at once, and what is answered."""
