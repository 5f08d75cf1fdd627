"""Bring forward what a clock that was ahead has put off for years.

Nothing waits in a queue for longer than the longest time of its kind: a grace, a retry, the days
for which an operation can be asked for. A member that is due later was queued by a clock that was
years ahead, and a queue keeps the later of two times, so that whoever queues it again does not
mend it. Once an hour each queue is looked at beyond that time, by a clock that is believed, and
what is found there is due at the end of the longest time. That is longer than it had to wait, so
nothing ends early. After a crash in between, the next walk does the rest.
"""

from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.delete_page import PUT_OFF_MS_MAX
from bottomless_server.manifest.removal.garbage_timer import DUE_KEY
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.keys import TIDY_KEY
from bottomless_server.stores.operations import OPERATIONS_KEY
from bottomless_server.stores.streams import deletes_key

log = structlog.get_logger(__name__)

_WALK_SECONDS: Final = 3_600.0
_RETRY_SECONDS: Final = 60.0
_PAGE_COUNT: Final = 1_024
MARGIN_MS: Final = 86_400_000
"""Other processes may have longer times in their settings, for as long as an upgrade lasts."""


class FarTimes:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def run(self) -> None:
        """Walk for ever."""
        await endless("manifest-far-times", self._walk_once)

    async def _walk_once(self) -> float:
        try:
            await self.walk()
        except StoreError as error:
            log.warning("queues were not looked at for far times", error=str(error))
            return _RETRY_SECONDS
        return _WALK_SECONDS

    async def walk(self) -> int:
        """Look at all queues once; returns how many members were brought forward.

        Raises:
            Unavailable: `clock-skew`: how late it is, is not known; nothing was changed.
            CoordinationUnavailable, DriveUnavailable, DriveRefused
        """
        now = await self._context.time.require()
        count = 0
        for queue, longest_ms in _longest(self._context).items():
            latest = now + longest_ms + MARGIN_MS
            moved = 0
            while page := await self._context.coordination.bring_forward(
                queue, latest, _PAGE_COUNT
            ):
                moved += len(page)
            if moved:
                log.error("a clock was ahead: times are brought forward", queue=queue, count=moved)
            count += moved
        return count


def _longest(context: Context) -> dict[str, int]:
    """Tell how long anything waits in each queue at most, in ms."""
    settings = context.settings
    longest_ms = max(
        settings.manifest_root_grace_ms,
        settings.manifest_delete_grace_ms,
        settings.manifest_upload_deadline_ms,
        settings.manifest_delete_interval_ms,
        PUT_OFF_MS_MAX,
    )
    return {
        **{deletes_key(number): longest_ms for number in context.drives.numbers},
        OPERATIONS_KEY: settings.manifest_operation_keep_ms,
        TIDY_KEY: settings.manifest_key_keep_ms,
        DUE_KEY: settings.manifest_gc_interval_ms,
    }
