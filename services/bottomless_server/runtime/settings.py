"""Settings that every service has, from the environment: `BOTTOMLESS_PORT=8080` and so on.

Each service adds its own in its `settings.py`, as a subclass of `CommonSettings`. Names
of another service's settings in the environment disturb nobody; an empty one is not set.
"""

from pathlib import Path
from typing import Literal

from pydantic_settings import BaseSettings, SettingsConfigDict


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
    """The object store: `file:///directory`."""
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

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    """One JSON object a line instead of text for people."""
