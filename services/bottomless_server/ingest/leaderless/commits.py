"""Commits of one instance: each until it is known what became of it.

Nothing here decides what is committed, or tells anybody: committer.py and staged.py do.

In Redis after a crash: what `stores.tail_commits.commit` and `stores.lost_commits.decide_lost` say.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal

import structlog

from bottomless.errors import Code, Corrupt, Unavailable
from bottomless_server.coordination.base import (
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
)
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.sequences import Sequences
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import Loss
from bottomless_server.stores.lost_commits import Fate, decide_lost
from bottomless_server.stores.tail_commits import Asked, Commit, CommitUnknown, commit
from bottomless_server.stores.wal_check import Unchecked

log = structlog.get_logger(__name__)


class NotNow(Enum):
    """Why nothing of a commit is stored, though the instance goes on."""

    CONFLICT = auto()
    """Others changed what it watched."""
    AWAY = auto()
    """Coordination does not answer."""
    UNCHECKED = auto()
    """This run of the store was not compared with the bucket."""


Outcome = Commit | Loss | NotNow | CommitUnknown


class InstanceCommits:
    """Makes the commits of one instance; one at a time."""

    def __init__(
        self, context: WriterContext, numbers: AttemptNumbers, sequences: Sequences
    ) -> None:
        self._context = context
        self._numbers = numbers
        self._sequences = sequences
        self.settled = 0
        """What the record has, as far as this writer knows."""

    async def try_once(
        self, asked: Sequence[Asked], *, sequence: int, settled: int, clock: int
    ) -> Outcome:
        """Commit a group by one EXEC. Where that is not known `decide` has to be asked, before any
        other commit. Nobody may cancel it."""
        try:
            done = await commit(
                self._context.coordination,
                self._numbers,
                asked,
                sequence=sequence,
                clock=clock,
                settled=settled,
                next_sequence=self._sequences.next,
                bounds=self._context.bounds.tail,
            )
        except CommitUnknown as error:
            return self._counted("unknown", error)
        except Unchecked:
            return self._counted("unchecked", NotNow.UNCHECKED)
        except CoordinationConflict:
            return self._counted("conflict", NotNow.CONFLICT)
        except (CoordinationUnavailable, CoordinationUnknown):
            return self._counted("unavailable", NotNow.AWAY)
        except Corrupt:
            log.exception("the instance of this writer cannot be read; it begins another one")
            return self._counted("lost", Loss.GONE)
        except Unavailable as error:
            return self._counted("lost", _regressed(error))
        if isinstance(done, Loss):
            return self._counted("settled" if done is Loss.SETTLED else "lost", done)
        self._take(done)
        return self._counted("ok", done)

    async def decide(self, lost: Commit) -> Fate | Loss | Literal[NotNow.UNCHECKED] | None:
        """Find out once what became of a commit whose reply was lost; None: ask again; UNCHECKED: ask
        again once the store is compared with the bucket."""
        try:
            fate = await decide_lost(self._context.coordination, self._numbers)
        except Unchecked:
            return NotNow.UNCHECKED
        except (CoordinationUnknown, CoordinationUnavailable, CoordinationConflict):
            return None
        except Corrupt:
            log.exception("the instance of this writer cannot be read; it begins another one")
            return Fate.UNKNOWN
        except Unavailable as error:
            return _regressed(error)
        if fate is Fate.APPLIED:
            self._take(lost)
        return fate

    def _take(self, done: Commit) -> None:
        self._sequences.note_reserved(done.record.reserved)
        self.settled = done.record.settled

    def _counted(self, name: str, outcome: Outcome) -> Outcome:
        self._context.counts.commits[name] += 1
        return outcome


def _regressed(error: Unavailable) -> Loss:
    """A loss by what the stores raise where coordination shows less than it did."""
    if error.code is not Code.COORDINATION_REGRESSED:
        raise error
    return Loss.REGRESSED
