"""What scenarios run on: one server for a module, and each place that records are read from."""

from support.places import filled, here
from support.served import client, running, stream

__all__ = ["client", "filled", "here", "running", "stream"]
