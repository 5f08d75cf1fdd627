"""Decide what becomes of fragments that an earlier uploader may have put.

An intent says that an object may exist under its key. What is found there is
adopted only when it is provably what the log says; everything else is given up,
and the uploader cuts it again. Giving up costs an upload, adopting wrongly costs data.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bottomless.model.fragment import FragmentInfo
from bottomless.model.stream import Intent, StreamRecord, epoch_at, is_unknown_epoch


class FoundUnderIntent(NamedTuple):
    """What lies under the key of one intent."""

    intent: Intent
    fragment: FragmentInfo | None
    """None where nothing lies there, or nothing whose checksums verify."""


class Resolution(NamedTuple):
    adopted: tuple[FragmentInfo, ...]
    """One run from the end of the manifest."""
    given_up: tuple[Intent, ...]


def resolve_intents(
    record: StreamRecord, found: Sequence[FoundUnderIntent], committed_next: int | None
) -> Resolution:
    """Split what was found into the run to adopt and the intents to give up.

    `committed_next` is what the owner says is durable in its log; None when it could not
    be asked, and then nothing is adopted: an object may hold what a recovery has cut.
    """
    adopted: list[FragmentInfo] = []
    end = record.published_next
    while True:
        fitting = [
            fragment
            for _, fragment in found
            if fragment is not None
            and fragment.first_offset == end
            and epoch_covers(record, fragment)
            and committed_next is not None
            and fragment.next_offset <= committed_next
        ]
        if not fitting:
            break
        # Two uploaders may have cut the same place; the longer one leaves less to do again.
        adopted.append(max(fitting, key=lambda fragment: fragment.next_offset))
        end = adopted[-1].next_offset
    uids = {fragment.uid for fragment in adopted}
    given_up = tuple(intent for intent, _ in found if intent.uid not in uids)
    return Resolution(tuple(adopted), given_up)


def epoch_covers(record: StreamRecord, fragment: FragmentInfo) -> bool:
    """Whether the fragment's epoch was the one to write each of its offsets.

    After a rebuild nobody knows which epochs those were below the first new owner: there any
    epoch of an older generation does, since only the home, which has the log, can have cut it.
    """
    # Epochs rise along offsets, so that equal ends mean an equal middle.
    first = epoch_at(record, fragment.first_offset)
    last = epoch_at(record, fragment.next_offset - 1)
    if first is None or first != last:
        return False
    return first == fragment.epoch or (is_unknown_epoch(first) and fragment.epoch < first)
