"""The client that sends requests to an S3 store: each of them once, with nothing added unasked."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.handlers import add_expect_header

from bottomless_server.drives.s3_options import S3Options
from bottomless_server.drives.s3_sent_source import SentSource
from bottomless_server.drives.sent_requests import kind_of

REGION_DEFAULT: Final = "us-east-1"
"""The region for a store with an endpoint of its own: most accept any, but a signature needs one."""


class OneAttemptSession(AIOHTTPSession):
    """Sends every request once.

    Why? aiohttp sends a PUT again, unasked, when the kept connection that it took breaks
    before the reply. The first may have arrived, and the second then hears that the
    object exists: a put of our own, reported as somebody else's.
    """

    async def _get_session(self, proxy_url: str | None) -> "_NoRedirects":
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)  # type: ignore[no-untyped-call]
        # aiohttp has no public name for it; a test sees whether it still works.
        session._retry_connection = False  # noqa: SLF001
        return _NoRedirects(session)


class _NoRedirects:
    """A session that gives a redirect to the library as the answer that it is.

    Why? The library knows what S3 means by it (the bucket is in another region), and asks there with
    another signature. aiohttp would send the same signature elsewhere, and of a body that was read
    while it was sent it says only that something went wrong.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **more: Any) -> aiohttp.ClientResponse:
        return await self._session.request(method, allow_redirects=False, **more)


class OpenClient(NamedTuple):
    """The library's client of one store, and the session that has its credentials."""

    client: Any
    session: Any


@asynccontextmanager
async def open_client(options: S3Options, requests: Counter[str]) -> AsyncIterator[OpenClient]:
    """The client of one store, with a pool of connections of its own; what it sends is counted in
    `requests`."""
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
        in_general: Any = config
        unsigned = in_general.merge(
            AioConfig(s3={**in_general.s3, "payload_signing_enabled": False})
        )

        def leave_unsigned(request: Any, **_: object) -> None:
            # SHA-256 of bytes that are read while they are sent cannot stand in the head before
            # them. Their CRC-32C does, and is signed. Decision 51 says what that is worth.
            if isinstance(request.data, SentSource):
                request.context = {**request.context, "client_config": unsigned}

        client.meta.events.register("before-sign.s3.PutObject", leave_unsigned)

        def count(event_name: str, **_: object) -> None:
            requests[kind_of(event_name.rpartition(".")[2])] += 1

        # Here and not at the calls: a redirect has the same request sent once more.
        client.meta.events.register("before-send.s3", count)
        yield OpenClient(client, session)
