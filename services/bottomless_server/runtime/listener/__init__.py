"""Sockets and the HTTP/1.1 protocol on them, with its bounds."""
