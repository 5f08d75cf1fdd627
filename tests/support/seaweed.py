"""A real S3 server for tests: the one that the demo starts as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s3_server import running_s3

from support.s3 import ACCOUNT, S3Server


@contextmanager
def running_seaweed(directory: Path) -> Iterator[S3Server]:
    """Start one on `directory`; call from the main thread only: the kernel kills it with it."""
    with running_s3(directory, ACCOUNT) as endpoint:
        yield S3Server(endpoint)
