"""Settings that every service has, from the environment: `BOTTOMLESS_PORT=8080` and so on.

Each service adds its own in its `settings.py`, as a subclass of `CommonSettings`. Names
of another service's settings in the environment disturb nobody; an empty one is not set.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from bottomless.model.limits import GIB, MIB


class CommonSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="BOTTOMLESS_", env_ignore_empty=True, extra="forbid", frozen=True
    )

    data_dir: Path = Path("bottomless-data")
    """This service's own directory; nobody else writes there."""

    host: str = "127.0.0.1"
    """Address of the public listener."""
    port: int = 8080
    """Port of the public listener; 0 takes a free one."""

    internal_listen: str | None = None
    """Where the internal listener is: `host:port` or `unix:///path`; a socket in the data
    directory if it is not said."""

    store_url: str | None = None
    """The object store: `file:///directory` or `s3://bucket/prefix?…`; see *Store URL*."""
    store_connect_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Of S3: how long to wait for a connection."""
    store_read_seconds: Annotated[float, Field(gt=0, le=600)] = 30.0
    """Of S3: silence for so long is a lost reply."""
    store_call_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Of S3: for one attempt, and the time its bytes take at 1 MiB/s on top."""
    store_connection_count_max: Annotated[int, Field(ge=1, le=4096)] = 64
    """Of S3: calls at the same time; more wait, within their own time."""
    store_multipart_bytes: Annotated[int, Field(ge=5 * MIB, le=5 * GIB)] = 128 * MIB
    """Of S3: objects larger than this are put in parts. S3 takes 5 GiB at most in one."""
    store_part_bytes: Annotated[int, Field(ge=5 * MIB, le=1 * GIB)] = 16 * MIB
    """Of S3: bytes of a part, at least 5 MiB: what S3 allows."""
    store_part_count_max: Annotated[int, Field(ge=1, le=64)] = 4
    """Of S3: parts of one object under way; each is memory."""
    coordination_url: str | None = None
    """Valkey or Redis: `redis://host:port/0` or `unix:///path`."""

    manifest_url: str | None = None
    """The manifest service's internal listener: `http://host:port` or `unix:///path`."""
    ingest_url: str | None = None
    """An ingest service's internal listener; for ingest itself, the url that others reach it by."""
    reader_url: str | None = None
    """The reader service's internal listener."""

    drain_seconds: float = 20
    """How long in-flight work may take when the process is told to stop."""

    fault_points: bool = False
    """For tests alone: let the internal listener arm places where the process dies."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    """One JSON object a line instead of text for people."""
