"""GETs of objects that are signed here and received in the memory in which they stay.

A general client copies every byte three times and takes a millisecond for a request. What is done
here is the usual case alone: a whole answer to a GET, as it was asked for. Whatever else comes (a
refusal, a redirect, an unusual form, a connection that breaks) is nothing, and `s3.py` then asks
by the library, so that every error is the library's. Where the bucket is, with which region and
whose credentials requests are signed: all of it comes from the library too. Decision 42.
"""

import asyncio
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import aiohttp
import structlog
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from bottomless.guards import guard
from bottomless_server.drives.s3_options import S3Options
from bottomless_server.drives.s3_signature import Credentials, path_of, signed_get
from bottomless_server.fetch.get_in_place import (
    BODY_SIZE_MAX,
    BrokenOff,
    InPlaceAnswer,
    InPlaceClient,
    NoConnection,
)

log = structlog.get_logger(__name__)

_SENTINEL: Final = "x"
"""An object key for which the library is asked where objects are."""
_CONTENT_RANGE: Final = re.compile(
    r"bytes ([0-9]{1,19})-([0-9]{1,19})/(?:([0-9]{1,19})|\*)", re.ASCII
)
"""What a range looks like in an answer; no number is longer, as Python refuses to read some."""
_IDLE_SECONDS: Final = 10
"""Shorter than stores keep an idle connection, so that few requests meet its closing."""
ODD_COUNT_MAX: Final = 16
"""So many answers in a row that are of no use: then GETs are left to the library for a while, so that
a store that redirects, or is in trouble, is not asked everything twice."""
PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Where:
    """Where the objects of the bucket are, and with what requests are signed."""

    client: InPlaceClient
    host: str
    path: str
    """What comes before an object key, a slash at its end."""
    region: str


class GetsInPlace:
    """GETs from one bucket. Connects at its first use."""

    def __init__(self, options: S3Options, requests: Counter[str]) -> None:
        """What is sent is counted in `requests`."""
        self._options = options
        self._requests = requests
        self._where: _Where | None = None
        self._locating = asyncio.Lock()
        self._fit = options.gets_in_place
        self._odd_count = 0
        self._paused_until = 0.0

    def close(self) -> None:
        """End all connections."""
        self._fit = False
        if self._where is not None:
            self._where.client.close()

    async def get(
        self, session: Any, client: Any, object_key: str, start: int, size: int | None
    ) -> memoryview | None:
        """The bytes of an object from `start` on, at most `size`; None: ask the library.

        Raises:
            TimeoutError: the store took too long, or was silent for too long.
        """
        loop = asyncio.get_running_loop()
        if not self._fit or loop.time() < self._paused_until:
            return None
        try:
            where = self._where or await self._located(session, client)
            credentials = await _frozen(session)
        except (BotoCoreError, ClientError, aiohttp.ClientError, OSError):
            # The library meets the same, and has the words for it.
            return None
        if where is None or credentials is None:
            return None
        wanted = "" if start == 0 and size is None else _range(start, size)
        try:
            answer = await self._ask(where, credentials, object_key, wanted, size)
        except (NoConnection, BrokenOff):
            answer = None
        if answer is None or not is_as_wanted(answer, start, size, ranged=bool(wanted)):
            self._note_odd(loop.time())
            return None
        self._odd_count = 0
        return answer.data

    async def _ask(
        self,
        where: _Where,
        credentials: Credentials,
        object_key: str,
        wanted: str,
        size: int | None,
    ) -> InPlaceAnswer:
        options = self._options
        path = where.path + path_of(object_key)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        ranged = {"range": wanted} if wanted else {}
        headers = signed_get(where.host, path, ranged, credentials, where.region, moment)
        sent = True
        try:
            return await where.client.get(
                path,
                headers,
                options.seconds_for(size or 0),
                silence_seconds=options.read_seconds,
                # A store that ignores ranges would send all.
                size_max=BODY_SIZE_MAX if size is None else size,
            )
        except NoConnection:
            sent = False
            raise
        finally:
            self._requests["get"] += sent

    def _note_odd(self, now: float) -> None:
        self._odd_count += 1
        if self._odd_count >= ODD_COUNT_MAX:
            self._paused_until = now + PAUSE_SECONDS
            log.info("s3_gets_left_to_the_library", seconds=PAUSE_SECONDS)

    async def _located(self, session: Any, client: Any) -> _Where | None:
        # The lock: calls at the same time must not open two.
        async with self._locating:
            if self._where is None and self._fit:
                url: str = await client.generate_presigned_url(
                    "get_object", Params={"Bucket": self._options.bucket, "Key": _SENTINEL}
                )
                self._where = await self._place_of(url, session)
                self._fit = self._where is not None
            return self._where

    async def _place_of(self, url: str, session: Any) -> _Where | None:
        """Where a presigned URL leads, and how it is signed; None: not as we can."""
        place = urlsplit(url)
        query = parse_qs(place.query)
        scope = query.get("X-Amz-Credential", [""])[0].split("/")[-4:]
        signed_as_ours = query.get("X-Amz-Algorithm") == ["AWS4-HMAC-SHA256"]
        if not signed_as_ours or len(scope) != 4 or scope[2:] != ["s3", "aws4_request"]:
            return None
        proxies = get_environ_proxies(url)  # type: ignore[no-untyped-call]
        if proxies.get(place.scheme) or place.hostname is None or "@" in place.netloc:
            # Whoever set a proxy wants all requests to go by it; and a user and a password are
            # no part of what stands in the header `host`.
            return None
        secure = None
        if place.scheme == "https":
            trusted = self._options.ca_path or session.get_config_variable("ca_bundle")
            trusted = trusted or get_cert_path(True)  # type: ignore[no-untyped-call]
            secure = await asyncio.to_thread(_trusting, str(trusted))
        return _Where(
            self._opened(
                place.hostname, place.port or (443 if secure else 80), place.netloc, secure
            ),
            place.netloc,
            place.path.removesuffix(_SENTINEL),
            scope[1],
        )

    def _opened(
        self, host: str, port: int, netloc: str, secure: ssl.SSLContext | None
    ) -> InPlaceClient:
        loop = asyncio.get_running_loop()

        def connect(protocol: Callable[[], asyncio.BufferedProtocol]) -> Any:
            return loop.create_connection(protocol, host, port, ssl=secure)

        return InPlaceClient(
            connect,
            {"host": netloc, "accept-encoding": "identity", "user-agent": "bottomless"},
            connection_count_max=self._options.connection_count_max,
            connect_seconds=self._options.connect_seconds,
            idle_seconds=_IDLE_SECONDS,
        )


def _trusting(ca_path: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_path)


async def _frozen(session: Any) -> Credentials | None:
    """The credentials of now, refreshed by the library if they end soon; None where there are none,
    or some that cannot stand in a header."""
    held = await session.get_credentials()
    if held is None:
        return None
    frozen: Any = await held.get_frozen_credentials()
    shown = f"{frozen.access_key}{frozen.token or ''}"
    return frozen if shown.isascii() and shown.isprintable() and frozen.secret_key else None


def _range(start: int, size: int | None) -> str:
    return f"bytes={start}-" if size is None else f"bytes={start}-{start + size - 1}"


@guard("bytes as asked for")
def is_as_wanted(answer: InPlaceAnswer, start: int, size: int | None, *, ranged: bool) -> bool:
    """Whether these are the bytes that were asked for, all of them and nothing else."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        return False
    if not ranged:
        return answer.status == 200
    shown = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if answer.status != 206 or shown is None:
        return False
    first, last, total = shown.groups()
    if int(first) != start or int(last) - start + 1 != len(answer.data):
        return False
    whole = size is not None and len(answer.data) == size
    # Less than was asked for is right where the object ends there.
    return whole or (total is not None and int(last) + 1 == int(total))
