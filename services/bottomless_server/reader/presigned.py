"""URLs with which anybody reads fragments from the store, for a while and without credentials.

They are the one exception, beside `locations=true`, to the rule that object keys stay
inside: a presigned URL names endpoint, bucket, prefix and key. Who may list fragments with
URLs may read what the store holds of them, past this service, until the URLs end.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from bottomless.drives.base import Drive, Presigning
from bottomless.errors import Fault, InvalidRequest
from bottomless.model.offset_spec import format_timestamp

YIELD_COUNT: Final = 16
"""Signing is some 0.2 ms of arithmetic and waits for nobody, so after so many URLs everybody
else on the event loop has a turn."""


class PresignedUrls:
    def __init__(self, drive: Drive, valid_seconds: int) -> None:
        self._signer = drive if isinstance(drive, Presigning) else None
        self._valid_seconds = valid_seconds

    def check(self) -> None:
        """Refuse where the store knows no such URLs.

        Raises:
            InvalidRequest
        """
        if self._signer is None:
            fault = Fault(
                "unsupported",
                "the object store of this service makes no presigned URLs",
                parameter="urls",
            )
            raise InvalidRequest(
                "there are no presigned URLs here; fragments can be read at their href",
                faults=[fault],
            )

    async def of(self, object_keys: Sequence[str]) -> list[dict[str, Any]]:
        """Make the members of each key's item: the URL, and when it ends.

        Raises:
            DriveRefused, DriveUnavailable: there are no credentials to sign with.
        """
        assert self._signer is not None
        # Before the first is signed, and in whole seconds as signatures count them: no URL
        # ends before the time that is told.
        ends = (int(time.time()) + self._valid_seconds) * 1000
        shown = format_timestamp(ends)
        made: list[dict[str, Any]] = []
        for object_key in object_keys:
            url = await self._signer.presigned_get(object_key, valid_seconds=self._valid_seconds)
            made.append({"url": url, "url_expires_at": shown})
            if len(made) % YIELD_COUNT == 0:
                await asyncio.sleep(0)
        return made
