"""Records that were asked for and are gone: an error that names them, or a note."""

import logging
from typing import Final

from bottomless.errors import Code, OffsetGone
from bottomless.spark.store import Counts

_log: Final = logging.getLogger(__name__)


class Losses:
    """What one task, or one plan, does about records that retention or a trim has removed."""

    def __init__(self, *, fail: bool, counts: Counts | None = None) -> None:
        self._fail = fail
        self._counts = counts or Counts()

    def note(self, first_offset: int, next_offset: int, error: Exception | None = None) -> None:
        """Note that offsets cannot be read any more.

        They go from `first_offset` to `next_offset`, exclusive.

        Raises:
            OffsetGone: with failOnDataLoss, which is the default.
        """
        if next_offset <= first_offset:
            return
        if self._fail:
            raise OffsetGone(
                "data lost: these records were trimmed before they were read, and "
                "failOnDataLoss=false would skip them",
                code=Code.OFFSET_TRIMMED,
                facts={"first_offset": first_offset, "next_offset": next_offset},
            ) from error
        self._counts.lost_offsets += next_offset - first_offset
        _log.warning("skipped offsets %d to %d: trimmed", first_offset, next_offset - 1)
