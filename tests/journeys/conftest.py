"""What scenarios run on: one server for a module, and each place that records are read from."""

from support.places import both_tiers, here
from support.served import client, running, stream

__all__ = ["both_tiers", "client", "here", "running", "stream"]
