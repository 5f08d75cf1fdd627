"""Places between two steps where a test may let a process die, or stand still.

A rule about what a crash leaves is only as good as a process that died there. A step that
saves or deletes passes a named point after it; a test arms the point over the internal
listener, and the process ends there as by SIGKILL: nothing is flushed, nobody is told.

Nothing can be armed unless BOTTOMLESS_FAULT_POINTS is on, and a point that is not armed costs
one look into an empty dict.
"""

import asyncio
import os
from enum import StrEnum
from typing import Final

import structlog

log = structlog.get_logger(__name__)

POINTS: Final = frozenset(
    {
        "ingest.staged.after-sync",
        "ingest.commit.after-plan",
        "ingest.commit.after-part",
        "ingest.commit.after-append",
        "ingest.super.after-begin",
        "ingest.super.after-part",
        "ingest.super.before-complete",
        "ingest.wal.after-put",
        "ingest.wal.after-exec",
        "ingest.replica.after-checkpoint",
        "ingest.replica.after-removal",
        "ingest.replica.after-cut",
        "ingest.replica.after-sync",
        "uploader.put.after-intent",
        "uploader.put.after-object",
        "uploader.put.after-register",
        "uploader.move.after-claim",
        "uploader.move.after-copies",
        "uploader.move.after-finish",
        "manifest.publish.after-groups",
        "manifest.publish.before-exec",
        "manifest.publish.after-exec",
        "manifest.prune.after-exec",
        "manifest.vacuum.after-settle",
        "manifest.vacuum.after-delete",
        "manifest.vacuum.after-exec",
        "manifest.tiers.after-enter",
        "manifest.retention.before-cut",
        "manifest.retention.after-cut",
        "manifest.deleter.after-condemn",
        "manifest.deleter.after-claim",
        "manifest.deleter.after-delete",
        "manifest.deleter.before-settle",
        "manifest.deletion.after-exec",
        "manifest.deletion.after-object",
        "manifest.deletion.mid-sweep",
        "manifest.drives.after-number",
        "manifest.drives.after-marker",
        "manifest.drives.after-use",
        "manifest.drives.after-closing",
        "manifest.drives.before-retired",
        "manifest.drives.after-retired",
        "manifest.drives.after-lost",
        "manifest.garbage.after-bump",
        "manifest.garbage.after-queue",
        "manifest.super.after-exec",
        "manifest.super.before-object",
        "manifest.super.after-object",
        "manifest.super-deletion.after-exec",
        "manifest.super-deletion.after-object",
        "manifest.super-deletion.after-partition",
        "manifest.super-deletion.before-forget",
        "manifest.super-growth.after-exec",
        "manifest.super-growth.after-owners",
        "manifest.super-growth.after-second-exec",
        "manifest.takeover.after-fence",
        "manifest.takeover.after-gap",
        "manifest.keys.after-reserve",
        "manifest.keys.after-object",
        "manifest.keys.after-revocation",
        "manifest.keys.after-revocation-object",
        "manifest.rebuild.after-key-object",
        "manifest.rebuild.after-stream",
        "manifest.rebuild.before-generation",
        "manifest.rebuild.after-generation",
        "manifest.queue-start.after-exec",
        "manifest.queue-start.after-object",
        "manifest.queue-home.after-exec",
        "manifest.queue-home.after-object",
        "queues.start.after-lease",
        "queues.start.after-token",
        "queues.start.after-entry",
        "queues.stop.before-close",
        "queues.stop.after-close",
    }
)
"""What can be armed; a test compares it with what the services pass."""

EXIT_AT_FAULT_POINT: Final = 137
"""What a shell shows of a process that was killed."""


class FaultAction(StrEnum):
    EXIT = "exit"
    """End at once, as by SIGKILL."""
    STALL = "stall"
    """Go no further, while the rest of the process goes on."""


class _Armed:
    def __init__(self, action: FaultAction, count: int) -> None:
        self.action = action
        self.left = count


_armed: dict[str, _Armed] = {}


def arm(name: str, action: FaultAction, count: int = 1) -> None:
    """Let `action` happen when the point is passed for the `count`-th time from now on."""
    assert name in POINTS
    _armed[name] = _Armed(action, count)


def disarm_all() -> None:
    _armed.clear()


async def reach(name: str) -> None:
    """Pass a point. Returns at once unless it was armed."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    armed.left -= 1
    if armed.left > 0:
        return
    del _armed[name]
    log.warning("a fault point was reached", point=name, action=armed.action)
    if armed.action is FaultAction.EXIT:
        os._exit(EXIT_AT_FAULT_POINT)
    await asyncio.Event().wait()
