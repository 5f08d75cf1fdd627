"""Appends whose records have numbers of their own, under way for one producer: one that is refused takes
those along that came after it.

If a later one were stored, all records of the earlier one would count as stored from then on, and be left
out without a word when it is sent again. Whoever is refused here was told by nobody yet that the earlier
one was. What comes later still is up to the producer, which has heard of it.
"""

from collections.abc import Callable, Sequence

from bottomless.errors import Code, Outcome, Overloaded, StoreError
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import FromProducer


class Followers:
    """The appends of a process that are under way and have numbered records; their requests hold room
    for them. `refuse` takes appends that are not decided and will not be stored any more."""

    def __init__(self, refuse: Callable[[Sequence[WaitingAppend], StoreError], None]) -> None:
        self._refuse = refuse
        self._lines: dict[tuple[StreamId, str], list[WaitingAppend]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def enter(self, stream_id: StreamId, append: WaitingAppend) -> None:
        """Note an append that comes in line; its answer ends that."""
        identity, settle = append.append.conditions.identity, append.settle
        if not append.append.conditions.numbered or not isinstance(identity, FromProducer):
            return
        key = (stream_id, identity.producer_id)
        self._lines.setdefault(key, []).append(append)

        def settle_and_leave(said: Appended | StoreError) -> None:
            settle(said)
            self._leave(key, append, said)

        append.settle = settle_and_leave

    def _leave(
        self, key: tuple[StreamId, str], append: WaitingAppend, said: Appended | StoreError
    ) -> None:
        line = self._lines[key]
        at = line.index(append)
        later = line[at + 1 :]
        del line[at]
        if not line:
            del self._lines[key]
        if takes_along(said):
            # The last one first: so each of them has none after it that is not decided.
            self._refuse(later[::-1], _after_a_refused_one())


@guard("an append with numbered records after one that is refused")
def takes_along(said: Appended | StoreError) -> bool:
    """Tell whether what came after an append that is told this must not be stored. Where the stream
    did not end as it expected, the producer said by that what it wants. One whose note alone did not
    come in time is stored, and others may be under way after it."""
    if not isinstance(said, StoreError) or said.code is Code.OFFSET_MISMATCH:
        return False
    is_stored = said.code is Code.OBJECT_STORE_UNAVAILABLE and said.outcome is Outcome.UNKNOWN
    return not is_stored


def _after_a_refused_one() -> Overloaded:
    sentence = "an append of this producer that came before was refused; send that one again first"
    return Overloaded(sentence, retry_after_seconds=1)
