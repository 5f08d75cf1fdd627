"""The all-in-one with a Valkey and an S3 server beside it, which outlive it and are looked into."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bottomless.model.names import StreamId
from support.fault_proxy import FaultProxy, running_fault_proxy
from support.ports import lasting_ports
from support.s3 import ACCOUNT, BUCKET, S3Server, s3_client
from support.server import AllInOne
from support.stored import Stored, StoredInS3
from support.stored_stream import StoredStream
from support.valkey import running_valkey


@dataclass
class OnS3:
    """It runs already."""

    server: AllInOne
    stored: Stored
    coordination_url: str

    def stored_stream(self, stream_id: StreamId) -> StoredStream:
        """A stream as it lies in the store and in coordination, past all services."""
        return StoredStream(self.stored, self.coordination_url, stream_id)


@contextmanager
def running_on_s3(
    directory: Path, stored: Stored, settings: Mapping[str, str]
) -> Iterator[tuple[AllInOne, str]]:
    """Start a Valkey and the all-in-one on an empty directory; it, and where coordination is."""
    with running_valkey(directory / "valkey") as valkey:
        environment = {
            **stored.credentials,
            "BOTTOMLESS_STORE_URL": stored.url,
            "BOTTOMLESS_COORDINATION_URL": valkey.url,
            **settings,
        }
        with AllInOne(directory / "data", environment, *lasting_ports(1)) as server:
            yield server, valkey.url


@contextmanager
def stored_behind_proxy(s3: S3Server, seed: int) -> Iterator[tuple[FaultProxy, StoredInS3]]:
    """A prefix of its own, to which services go through the proxy and tests past it."""
    prefix = f"disturbed/{secrets.token_hex(8)}"
    with running_fault_proxy(s3.endpoint, seed) as proxy, s3_client(s3) as client:
        # The server's very first put makes volumes, which takes longer than is waited for here.
        client.put_object(Bucket=BUCKET, Key=f"{prefix}-first", Body=bytes(65_536))
        yield proxy, StoredInS3(ACCOUNT.store_url(proxy.endpoint, prefix), client, prefix)
