"""The audit: one entry for each request that manages something, whoever sent it.

Entries go to the log of the process under the name `bottomless.audit`, whatever its level is, and
to a file of their own where one is configured: a JSON object a line, in the order in which they
were answered. An entry is written, and in the file synced, before the client sees the first byte
of the answer.

After a crash the file has an entry for every answer that a client saw. What was done, and not
answered, has none: the manifest and its operations say what became of it.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from starlette.types import Scope

from bottomless_server.core.principal import Principal
from bottomless_server.runtime.base.cannot_start import CannotStart

LOGGER: Final = "bottomless.audit"
TARGET_SIZE_MAX: Final = 512

_AUDITED: Final = "bottomless.audited"

log = structlog.get_logger(__name__)
# Of its own class, so that a process that only logs errors still says who trimmed what.
_audit = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(0))


@dataclass(slots=True)
class Audited:
    """What is known of one request that may be audited."""

    action: str | None
    """None for one that is not audited, unless the route finds something that is."""
    target: str | None
    others: Sequence[str] = ()
    """What the same was done to beside the target: each has an entry of its own."""
    written: bool = False


def note_audited(scope: Scope, audited: Audited) -> None:
    """Let the services say more; the gate alone does."""
    scope[_AUDITED] = audited


def note_action(scope: Scope, action: str) -> None:
    """Say what a request does, where its method and path do not."""
    if (audited := scope.get(_AUDITED)) is not None:
        audited.action = action


def note_target(scope: Scope, target: str) -> None:
    """Say on what, where the path does not."""
    if (audited := scope.get(_AUDITED)) is not None:
        audited.target = target


def note_targets(scope: Scope, targets: Sequence[str]) -> None:
    """Say on what, where a request did the same to each of several; there is one at least."""
    if (audited := scope.get(_AUDITED)) is not None:
        audited.target, *audited.others = targets


class Audit:
    """Where entries go."""

    def __init__(self, path: Path | None) -> None:
        """Open the audit; without a path, entries go to the log alone.

        Raises:
            CannotStart: the file cannot be written.
        """
        self._path = path
        self._writing = asyncio.Lock()
        if path is None:
            return
        try:
            os.close(_opened(path))
        except OSError as error:
            raise CannotStart(
                f"the audit file {path} cannot be written: {error.strerror}"
            ) from error

    async def write(
        self, audited: Audited, principal: Principal, status: int | None, request_id: str
    ) -> None:
        """Write the entry of one request, or one for each of its targets; `status` is None where it
        was not answered."""
        audited.written = True
        entries = [
            {
                "actor": _shown(principal.actor),
                "tenant": principal.tenant,
                "action": audited.action,
                "target": None if target is None else _shown(target),
                "status": status,
                "request_id": request_id,
            }
            for target in (audited.target, *audited.others)
        ]
        for entry in entries:
            _audit.info("audit", logger=LOGGER, **entry)
        if self._path is not None:
            await self._append(self._path, entries)

    async def _append(self, path: Path, entries: Sequence[dict[str, Any]]) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = b"".join(orjson.dumps({"time": time, **entry}) + b"\n" for entry in entries)
        try:
            async with self._writing:
                await asyncio.to_thread(_append, path, lines)
        except OSError as error:
            # What was done is done: its client hears of it. The log has the entry.
            log.critical("the audit file cannot be written", error=error.strerror)


def _append(path: Path, line: bytes) -> None:
    # Opened each time, so that whoever moves the file away finds a new one in its place.
    file = _opened(path)
    try:
        os.write(file, line)
        os.fsync(file)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _shown(text: str) -> str:
    """A text of a client's as plain ASCII: it ends no line and hides nothing."""
    return text.encode("unicode_escape").decode("ascii")[:TARGET_SIZE_MAX]
