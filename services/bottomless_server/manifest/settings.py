"""Settings of the manifest service. Each may be given as BOTTOMLESS_MANIFEST_… in the environment."""

from pydantic import Field

from bottomless.model.limits import FANOUT_DEFAULT, FANOUT_MIN
from bottomless_server.manifest.core.keeper import Bounds
from bottomless_server.runtime.settings import CommonSettings


class ManifestSettings(CommonSettings):
    manifest_fanout: int = Field(FANOUT_DEFAULT, ge=FANOUT_MIN, le=100_000)
    """Entries that make a group."""
    manifest_debounce_ms: int = Field(50, ge=0, le=60_000)
    """How long a fragment may wait for others to share its root."""
    manifest_debounce_count: int = Field(64, ge=1, le=100_000)
    """A run this long is published at once."""
    manifest_held_count_max: int = Field(1_024, ge=1, le=100_000)
    """Fragments of one stream that may wait for the one before them; more are refused."""
    manifest_register_wait_ms: int = Field(10_000, ge=0, le=60_000)
    """How long a registration waits to be applied before it answers what still waits."""
    manifest_put_seconds: float = Field(10.0, gt=0)
    """How long one attempt to put a group or a root may take."""
    manifest_root_grace_ms: int = Field(15 * 60_000, ge=0)
    """How long a replaced root stays: longer than any reader caches one."""
    manifest_upload_deadline_ms: int = Field(60 * 60_000, ge=0)
    """The longest that a put of an uploader can be under way; given-up keys go after it."""
    manifest_delete_interval_ms: int = Field(30_000, ge=10)
    manifest_owner_ms: int = Field(1_000, ge=1)
    """How long the owner of a tail is waited for when its bounds are shown."""
    manifest_stream_count_max: int = Field(4_096, ge=1)
    """Streams whose manifest is kept in memory; the longest unused goes first."""

    def bounds(self) -> Bounds:
        return Bounds(
            fanout=self.manifest_fanout,
            debounce_ms=self.manifest_debounce_ms,
            debounce_count=self.manifest_debounce_count,
            held_count_max=self.manifest_held_count_max,
        )
