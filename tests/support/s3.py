"""What tests need to know of an S3 server, whichever it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from s3_server import Account

ACCOUNT = Account("test", "testing", "testing-secret")
BUCKET = ACCOUNT.bucket
CREDENTIALS = ACCOUNT.environment()
"""The environment of a process that may use the server."""


class S3Server(NamedTuple):
    endpoint: str

    def store_url(self, prefix: str) -> str:
        """As `BOTTOMLESS_STORE_URL` names it."""
        return ACCOUNT.store_url(self.endpoint, prefix)


def bill_kind(method: str, path: str) -> str:
    """What a bill calls a request, by its method and its path with the query."""
    words = {word.partition("=")[0] for word in path.partition("?")[2].split("&")}
    if method == "HEAD":
        return "head"
    if method == "DELETE" or "delete" in words:
        return "delete"
    if method == "GET":
        return "list" if "list-type" in words else "get"
    return "put"


@contextmanager
def s3_client(server: S3Server) -> Iterator[Any]:
    """A client that knows nothing of our drive, and blocks."""
    with ACCOUNT.client(server.endpoint) as client:
        yield client
