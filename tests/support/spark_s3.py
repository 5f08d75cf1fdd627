"""Streams whose objects lie in an S3 server, and workers that may read it or may not."""

import itertools
import json
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from bottomless.client import Client
from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client
from support.server import AllInOne
from support.spark_session import Streams

SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
"""Everything is in object storage soon."""
SETTINGS = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500",
    "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
}

_numbers = itertools.count()


class Stored(NamedTuple):
    """A stream that is all in S3, and what was appended to it."""

    name: str
    values: list[bytes]


class S3Streams(NamedTuple):
    """Streams whose objects lie in an S3 server."""

    streams: Streams
    s3: S3Server
    prefix: str
    """Of the keys of all objects of the server, which has no other one's."""

    def store(self, count: int, requests: int) -> Stored:
        name = f"stream-{next(_numbers)}"
        self.streams.client.create_stream(name, SMALL)
        values = self.streams.produce(name, count, requests)
        self.streams.client.wait_until_stored(name, timeout_seconds=240)
        return Stored(name, values)

    def store_fragments(self, counts: list[int]) -> Stored:
        """A stream of just so many fragments, each of so many records."""
        name = f"stream-{next(_numbers)}"
        self.streams.client.create_stream(name, SMALL)
        values: list[bytes] = []
        for count in counts:
            values += self.streams.produce(name, count)
            self.streams.client.wait_until_stored(name, timeout_seconds=240)
        return Stored(name, values)

    def lose_objects(self, name: str) -> None:
        """Delete every fragment of a stream behind the back of the services."""
        stream_id = self.streams.client.offsets(name).stream_id
        with s3_client(self.s3) as client:
            found = client.list_objects_v2(
                Bucket=BUCKET, Prefix=f"{self.prefix}/default/{stream_id}/data"
            )
            for item in found["Contents"]:
                client.delete_object(Bucket=BUCKET, Key=item["Key"])


@pytest.fixture(scope="module")
def s3_streams(
    tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server, spark: SparkSession
) -> Iterator[S3Streams]:
    """One server on S3 for the tests of a file, each of which has a stream of its own."""
    prefix = f"spark/{secrets.token_hex(8)}"
    folder = tmp_path_factory.mktemp("spark-s3")
    drives = {
        "shelf": {"number": 1, "url": (folder / "shelf").as_uri()},
        "cold": {"number": 2, "url": seaweed.store_url(f"{prefix}-cold")},
    }
    settings = {
        **SETTINGS,
        **CREDENTIALS,
        "BOTTOMLESS_STORE_URL": seaweed.store_url(prefix),
        "BOTTOMLESS_DRIVES": json.dumps(drives),
    }
    with (
        AllInOne(folder / "data", settings) as server,
        Client(server.url) as client,
    ):
        for name in drives:
            client.register_drive(name)
        yield S3Streams(Streams(client, spark, server), seaweed, prefix)
