"""Settings that every service has, from the environment: `BOTTOMLESS_PORT=8080` and so on.

Each service adds its own in its `settings.py`, as a subclass of `CommonSettings`. Names
of another service's settings in the environment disturb nobody; an empty one is not set.
"""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from bottomless.model.limits import GIB, KIB, MIB
from bottomless_server.core.store_prices import StorePrices, parse_prices
from bottomless_server.runtime.base.identity_settings import IdentitySettings
from bottomless_server.runtime.base.loopback import is_loopback
from bottomless_server.runtime.base.origins import is_as_browsers_send_it

_PEER: Final = re.compile(r"http://[^/\s]+/?|unix:///?\S+")
_HOST: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")


class CommonSettings(IdentitySettings):
    data_dir: Path = Path("bottomless-data")
    """This service's own directory; nobody else writes there."""

    host: str = "127.0.0.1"
    """Address of the public listener."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of the public listener; 0 takes a free one."""

    internal_listen: str | None = None
    """Where the internal listener is: `host:port` or `unix:///path`; a socket in the data
    directory if it is not said."""

    internal_secret: str | None = None
    """What internal listeners over TCP ask for, the same for all services: 32 to 128 letters,
    digits, `-` and `_`. Two with a comma between them are both taken, and the first is sent."""
    internal_secret_file: Path | None = None
    """A file with it, instead."""
    allow_unauthenticated_internal: bool = False
    """Allow an internal listener over TCP that asks for no secret."""

    store_url: str | None = None
    """The object store: `file:///directory` or `s3://bucket/prefix?…`; docs/settings.md."""
    drives: str | None = None
    """Further stores for fragments, as JSON; docs/tiers.md. Manifest, uploader and reader use it."""
    store_connect_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """How long to wait for a connection to S3."""
    store_read_seconds: Annotated[float, Field(gt=0, le=600)] = 30.0
    """How long S3 may be silent before the reply counts as lost."""
    store_call_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """How long one attempt of a call to S3 may take, on top of the time of its bytes at 1 MiB/s."""
    store_connection_count_max: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls to S3 at the same time; more wait, within their own time."""
    store_multipart_bytes: Annotated[int, Field(ge=5 * MIB, le=5 * GIB)] = 128 * MIB
    """Objects larger than this are put to S3 in parts. S3 takes 5 GiB at most in one."""
    store_part_bytes: Annotated[int, Field(ge=5 * MIB, le=1 * GIB)] = 16 * MIB
    """Bytes of a part that is put to S3, at least 5 MiB: what S3 allows."""
    store_part_count_max: Annotated[int, Field(ge=1, le=64)] = 4
    """Parts of one object under way to S3; each is memory."""
    store_prices: str = "put=0.005,list=0.005,get=0.0004,head=0.0004,delete=0,month=0.023"
    """What the object store asks for, in dollars: `put`, `list`, `get`, `head` and `delete` for a
    thousand requests, `written` and `read` for a GiB, `month` for a GiB and month."""
    coordination_url: str | None = None
    """Valkey or Redis: `redis://host:port/0` or `unix:///path`."""

    manifest_url: str | None = None
    """The manifest service's internal listener: `http://host:port` or `unix:///path`."""
    ingest_url: str | None = None
    """The url by which others reach the internal listener of ingest, for ingest alone; if it is not
    set, what it listens on."""
    reader_url: str | None = None
    """The reader service's internal listener."""
    queues_url: str | None = None
    """The url by which other nodes reach the internal listener of queues, for queues alone; if it is not
    set, what it listens on."""

    http_head_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """How long a client may take for the head of a request, and to begin its first one (408)."""
    http_body_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """How long a client may take for a body (408)."""
    http_body_stall_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """How long nothing of a body may come (408)."""
    http_idle_seconds: Annotated[float, Field(gt=0, le=3600)] = 75.0
    """How long a connection may stay between requests; our own clients let go earlier."""
    http_send_stall_seconds: Annotated[float, Field(gt=0, le=3600)] = 90.0
    """A client that takes nothing of its answer for so long is cut off. Longer than
    `BOTTOMLESS_READER_BLOCKED_SECONDS`, which ends an answer that stays open with a reason."""
    http_head_bytes_max: Annotated[int, Field(ge=8 * KIB, le=1 * MIB)] = 64 * KIB
    """Bytes of a request's URL and headers (414, 431)."""
    http_header_count_max: Annotated[int, Field(ge=16, le=10_000)] = 100
    """Headers of a request (431)."""
    http_body_bytes_max: Annotated[int, Field(ge=1 * MIB)] = 512 * MIB
    """Bytes of bodies of a listener's requests that have no answer yet; more are refused
    (503 `overloaded`)."""
    http_send_bytes_max: Annotated[int, Field(ge=1 * MIB)] = 256 * MIB
    """Bytes of a listener's answers that wait to be taken; beyond, who takes nothing is cut off."""
    http_connection_count_max: Annotated[int, Field(ge=1)] = 10_000
    """Connections of a listener; more are refused (503 `overloaded`). Never more than the
    descriptors of the process allow."""
    http_lane: bool = True
    """Answer appends that nobody has to wait for without a task of their own for each request;
    the answers are the same without it."""

    hosts: str | None = None
    """Names by which clients may call the public listener, with commas between them: `name`, or
    `*.name` for all below it. Addresses, `localhost` and names without a dot are always good;
    with identity any name is, as long as none is set."""
    cors_origins: str | None = None
    """Origins whose pages may call the public listener, `https://host[:port]` in lower case and
    without the scheme's own port, with commas between them; no page may if it is not set."""
    docs: bool | None = None
    """Serve `/docs`, the contract for people; on loopback alone if it is not said."""
    metrics_listen: str | None = None
    """Another listener, `host:port`, for `/metrics` alone: where the internal ones are sockets,
    which Prometheus does not ask."""

    otel: bool = False
    """Send OpenTelemetry spans, to where `OTEL_EXPORTER_OTLP_ENDPOINT` and its like say; needs the
    extra `otel`."""

    broker: bool = False
    """Serve the broker contract, `POST /produce`, `POST /consume` and `GET /health`: ingest and reader
    do; `docs/broker.md`."""
    broker_create: bool = False
    """Let the first produce to a partition that is not there make its stream, which is leaderless."""

    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 20
    """How long in-flight work may take when the process is told to stop."""

    rate_tenant_requests_per_second: Annotated[int, Field(ge=1)] | None = None
    """Requests that a tenant may send to this process in a second; no limit if it is not set."""
    rate_tenant_append_bytes_per_second: Annotated[int, Field(ge=KIB)] | None = None
    """Bytes of bodies that a tenant may append through this process in a second, as they are
    sent; no limit if it is not set."""
    rate_key_requests_per_second: Annotated[int, Field(ge=1)] | None = None
    """Requests that each credential (an API key, or the subject of a token) may send to this
    process in a second."""
    rate_key_append_bytes_per_second: Annotated[int, Field(ge=KIB)] | None = None
    """Bytes of bodies that each credential may append through this process in a second."""

    ingest_producer_count_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Producers that a stream remembers: some 500 bytes each, in memory and in every segment.
    Ingest holds it and manifest tells clients of it."""

    queues_message_bytes_max: Annotated[int, Field(ge=KIB, le=16 * MIB)] = MIB
    """Bytes of the value of a message (413 `record-too-large`). Queues holds to it and manifest
    tells clients of it."""

    fault_points: bool = False
    """Only for tests: let the internal listener arm points at which the process dies."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_requests: bool = False
    """A line for every request, at the level of info; else they are told at that of debug."""
    log_json: bool = False
    """One JSON object a line instead of text for people."""

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        words = (self.hosts or "").lower().split(",")
        return tuple(word.strip().removesuffix(".") for word in words if word.strip())

    @property
    def prices(self) -> StorePrices:
        """What the object store asks for."""
        return parse_prices(self.store_prices)

    @property
    def shows_docs(self) -> bool:
        return is_loopback(self.host) if self.docs is None else self.docs

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        words = (self.cors_origins or "").split(",")
        return tuple(word.strip().removesuffix("/") for word in words if word.strip())

    @field_validator("manifest_url", "ingest_url", "reader_url", "queues_url")
    @classmethod
    def _check_peer(cls, value: str | None) -> str | None:
        if value is not None and not _PEER.fullmatch(value):
            raise ValueError("a service's url looks like http://host:port or unix:///path")
        return value

    @field_validator("store_prices")
    @classmethod
    def _check_prices(cls, value: str) -> str:
        parse_prices(value)
        return value

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, value: str | None) -> str | None:
        for word in (value or "").split(","):
            if word.strip() and not _HOST.fullmatch(word.strip()):
                raise ValueError("a host looks like name or *.name, without a scheme or a port")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: str | None) -> str | None:
        for word in (value or "").split(","):
            if (origin := word.strip().removesuffix("/")) and not is_as_browsers_send_it(origin):
                raise ValueError(
                    "an origin looks like https://host or http://host:port, as browsers send it: "
                    "in lower case, and without :80 of http and :443 of https"
                )
        return value
