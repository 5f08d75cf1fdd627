"""Rounds of compaction that a test asks for."""

from bottomless_server.runtime.listener.listeners import internal_url
from support.processes import internal_client
from support.server import AllInOne


def compact_now(server: AllInOne) -> None:
    """Have a round of compaction done; returns when it has ended."""
    with internal_client(internal_url(None, server.data_dir, "uploader")) as uploader:
        uploader.post("/internal/v1/compact").raise_for_status()
