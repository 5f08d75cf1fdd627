"""What tests need to know of an S3 server, whichever it is."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import botocore.session
from botocore.config import Config

BUCKET = "test"
ACCESS_KEY = "testing"
SECRET_KEY = "testing-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment of a process that may use the server."""


class S3Server(NamedTuple):
    endpoint: str

    def store_url(self, prefix: str) -> str:
        """As `BOTTOMLESS_STORE_URL` names it."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}"


@contextmanager
def s3_client(server: S3Server) -> Iterator[Any]:
    """A client that knows nothing of our drive, and blocks."""
    session: Any = botocore.session.Session()  # type: ignore[no-untyped-call]
    style: Any = Config(s3={"addressing_style": "path"})  # type: ignore[no-untyped-call]
    client = session.create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=style,
    )
    with closing(client):
        yield client
