"""Looks again and again for streams of this node whose configuration was changed.

A PATCH changes the record of a stream, and tells nobody: its owner finds it there.
"""

import asyncio
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless_server.ingest.local.appender import ConfigMark
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.owner import Owner
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

_LOOKS_A_LEASE: Final = 3
"""So often in the time of a lease the configurations of streams are looked at."""
_CONFIG_COUNT: Final = 64
"""Records that one question asks for."""


class ConfigWatch:
    """Has open streams go on with the configuration that they have now, from `start` to `stop`."""

    def __init__(self, streams: OwnedStreams, owner: Owner) -> None:
        self._streams = streams
        self._stored = owner.streams
        self._lease = owner.lease
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(
            endless("ingest-configs", self._take_up_due), name="ingest-configs"
        )

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _take_up_due(self) -> float:
        await asyncio.sleep(self._lease.lease_ms / _LOOKS_A_LEASE / 1000)
        await self.take_up()
        return 0

    async def take_up(self) -> None:
        """Go on with the configuration that each stream has now: a PATCH changes the record alone.

        One question tells whether any stream's was changed, and as long as none was no record is
        read: of ten thousand slow streams that would be a quarter of a core. Only streams are
        looked at for which it makes a difference: something of them is not uploaded yet, or they wait
        for other nodes, as does what an owner found and may not show. Where coordination does not
        answer, the next look does it.
        """
        due = [one for one in self._streams.opened() if one.heeds_config]
        if not due:
            return
        try:
            # Before the records: what is changed after this changes the mark once more.
            mark = ConfigMark(await self._stored.config_mark())
        except StoreError as error:
            log.warning("configurations were not looked at", error=str(error))
            return
        due = [one for one in due if one.config_looked_at != mark]
        for start in range(0, len(due), _CONFIG_COUNT):
            page = [appender.stream_id for appender in due[start : start + _CONFIG_COUNT]]
            try:
                loaded = await self._stored.load_many(page)
            except StoreError as error:
                log.warning("configurations were not looked at", error=str(error))
                return
            for record in loaded.records:
                appender = self._streams.find(record.stream_id)
                if appender is None or record.epoch < appender.claim.epoch:
                    continue
                appender.config_looked_at = mark
                if record.epoch != appender.claim.epoch:
                    # Another owner's stream: of this one nothing is looked at any more.
                    appender.claim.note_fence()
                    continue
                if appender.stopped is None and record.config != appender.config:
                    await self._streams.configure(appender, record.config)
