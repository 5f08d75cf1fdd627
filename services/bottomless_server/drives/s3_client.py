"""How an S3 store is reached: its options, and the client that they make."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.handlers import add_expect_header

MIB: Final = 1024 * 1024
BYTES_PER_SECOND_MIN: Final = MIB
"""Slower than this over a whole call counts as stalled."""
REGION_DEFAULT: Final = "us-east-1"
"""For a store with an endpoint of its own: most take any region, but a signature needs one."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where a store is and how long it is waited for. Credentials come from the usual chain."""

    bucket: str
    prefix: str = ""
    """Without slashes at its ends."""
    endpoint: str | None = None
    """The address of a store that is not AWS: `http://host:port`."""
    region: str | None = None
    path_style: bool | None = None
    """The bucket in the path and not in the host's name. Default: where there is an endpoint."""
    ca_path: Path | None = None
    """Certificates to trust instead of the system's."""
    connection_count_max: int = 64
    """Calls at the same time; more wait, within their own time."""
    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    """Silence for so long is a lost reply."""
    call_seconds: float = 60.0
    """For one attempt, and the time its bytes take at 1 MiB/s on top."""
    multipart_bytes: int = 128 * MIB
    """Objects larger than this are put in parts: only such as no retry should send whole again."""
    part_bytes: int = 16 * MIB
    """At least 5 MiB: what S3 allows."""
    part_count_max: int = 4
    """Parts of one object under way; each is memory."""

    list_count: int = 1000
    """Keys in one page of a listing: what S3 allows."""
    listed_by_key: bool | None = None
    """Whether the store lists in the order of keys. Default: only AWS is trusted to."""

    @property
    def in_path(self) -> bool:
        """Whether the bucket stands in the path of a URL."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    def seconds_for(self, size: int) -> float:
        """How long one attempt that moves `size` bytes may take."""
        return self.call_seconds + size / BYTES_PER_SECOND_MIN


class OneAttemptSession(AIOHTTPSession):
    """Sends every request once.

    Why? aiohttp sends a PUT again, unasked, when the kept connection that it took breaks
    before the reply. The first may have arrived, and the second then hears that the
    object exists: a put of our own, reported as somebody else's.
    """

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)  # type: ignore[no-untyped-call]
        # aiohttp has no public name for it; a test sees whether it still works.
        session._retry_connection = False  # noqa: SLF001
        return session


@asynccontextmanager
async def open_client(options: S3Options) -> AsyncIterator[Any]:
    """The client of one store, with a pool of connections of its own."""
    secure = options.endpoint is None or options.endpoint.startswith("https:")
    config = AioConfig(
        signature_version="s3v4",
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=options.connect_seconds,
        read_timeout=options.read_seconds,
        max_pool_connections=options.connection_count_max,
        http_session_cls=OneAttemptSession,
        # We send CRC-32C of our own: the library must neither add CRC-32 nor count twice.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "path" if options.in_path else "virtual",
            # TLS keeps the bytes, and the signed CRC-32C proves them: SHA-256 over them
            # would stop the event loop for nothing.
            "payload_signing_enabled": not secure,
        },
    )
    session: Any = AioSession()  # type: ignore[no-untyped-call]
    region = options.region or session.get_config_variable("region")
    async with session.create_client(
        "s3",
        region_name=region or (REGION_DEFAULT if options.endpoint else None),
        endpoint_url=options.endpoint,
        verify=str(options.ca_path) if options.ca_path else None,
        config=config,
    ) as client:
        # `Expect: 100-continue` would cost a round trip for each put, and hang for as long as
        # the call may take where a proxy swallows it.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        yield client
