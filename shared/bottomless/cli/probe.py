"""Probe: one bare request, to see what the client's libraries hide: certificate, clock, time."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bottomless.errors import Unavailable

SECONDS_MAX: Final = 10.0


class Tls(NamedTuple):
    """What the connection says about its encryption."""

    version: str
    ends_at: datetime
    """When the server's certificate expires."""


class Probe(NamedTuple):
    """What one answer told."""

    seconds: float
    """From the first byte of the request to the head of the answer, without connecting."""
    clock_ahead: timedelta | None
    """How far the server's clock is ahead of ours; exact to a second, None if it does not say."""
    tls: Tls | None


def probe(url: str, ca_file: Path | None) -> Probe:
    """Ask whether the server is alive.

    Raises:
        Unavailable: nobody answers in time, or not with HTTP; its cause says which.
    """
    try:
        connection = _connection(url, ca_file)
        try:
            return _ask(connection, urlsplit(url).path.rstrip("/"))
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{url} does not answer") from error


def _connection(url: str, ca_file: Path | None) -> HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname, parts.port, timeout=SECONDS_MAX)
    trusted = ssl.create_default_context()
    if ca_file is not None:
        trusted.load_verify_locations(ca_file)
    return HTTPSConnection(parts.hostname, parts.port, timeout=SECONDS_MAX, context=trusted)


def _ask(connection: HTTPConnection, path: str) -> Probe:
    connection.connect()
    tls = _tls(connection)
    asked, began = datetime.now(UTC), time.perf_counter()
    connection.request("GET", f"{path}/livez")
    answer = connection.getresponse()
    seconds = time.perf_counter() - began
    said = answer.getheader("Date")
    return Probe(seconds, _ahead(said, asked + timedelta(seconds=seconds / 2)), tls)


def _ahead(said: str | None, then: datetime) -> timedelta | None:
    if said is None:
        return None
    try:
        # It is cut to a second, so on average half a second is missing.
        return parsedate_to_datetime(said) + timedelta(seconds=0.5) - then
    except ValueError:
        return None


def _tls(connection: HTTPConnection) -> Tls | None:
    socket = connection.sock
    if not isinstance(socket, ssl.SSLSocket):
        return None
    certificate = socket.getpeercert()
    assert certificate
    ends_at = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    return Tls(socket.version() or "TLS", datetime.fromtimestamp(ends_at, UTC))
