"""Decide what may stand where a newer root names something that is gone: the same, or nothing. Pure.

Two owners may have written other records at the same offsets: the one that was deposed, what nobody
had acknowledged, and the next one. What the first had uploaded lies in the bucket until it is
deleted: fragments, and the root of a publish that lost. After a loss of coordination nobody says
which owner was deposed, so that neither proves what was in an object that is gone. Therefore:

- An older root is believed only if it names nothing else at any offset of which a newer one names
  something. One that the newer root goes back to has the same entries, or those that were moved
  into the newer one's groups. Of what is in a group a root says only in which epochs it begins and
  ends, so that much has to be so.
- Of two roots of one version neither goes back to the other. They may name other uploads of the
  same offsets, if those of the second are of no epoch before: what one owner has at an offset is the
  same in each upload.
- A fragment that no root names is adopted at such offsets if it is of no epoch before that of the
  newer root. One of the same epoch has the same records, put once more. One of a later epoch proves
  that what is gone was never published, since an owner begins at the end of what is, or after it.
"""

import numpy as np
from numpy.typing import NDArray

from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Entries, EntryKind, Node, fragment_entry


@guard("what a newer root names at the same offsets")
def agrees(newer: Entries, older: Entries, *, one_version: bool) -> bool:
    """Whether no entry of an older root lies where a newer root names something else."""
    newer = _objects(newer)
    # All pairs that overlap, since a thousand roots may have to be looked at: entries of the older
    # one follow each other, so those that overlap one of the newer root are a slice.
    starts = np.searchsorted(older["next_offset"], newer["first_offset"], side="right")
    counts = np.maximum(
        np.searchsorted(older["first_offset"], newer["next_offset"], side="left") - starts, 0
    )
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    left, right = np.repeat(newer, counts), older[np.repeat(starts, counts) + within]
    same = (left["uid"] == right["uid"]) & (left["kind"] == right["kind"])
    other = (left["kind"] == EntryKind.FRAGMENT) & (
        (right["kind"] == EntryKind.GAP) | (not one_version)
    )
    return bool(np.all(same | (~other & _is_not_older(left, right))))


@guard("the epoch that a newer root names at the same offsets")
def may_be_adopted(newer: Entries, fragment: FragmentInfo) -> bool:
    """Whether a fragment that no root names is of no owner that was deposed before."""
    named = _objects(newer)
    named = named[
        (named["first_offset"] < np.uint64(fragment.next_offset))
        & (named["next_offset"] > np.uint64(fragment.first_offset))
    ]
    return bool(np.all(_is_not_older(named, fragment_entry(fragment))))


def names_after(passed: Entries, newer: Node, end: int) -> Entries:
    """What roots name that were passed over: `passed`, and what the next of them has after `end`."""
    known = {entry["uid"].tobytes() for entry in passed}
    after = _objects(newer.entries[newer.entries["next_offset"] > np.uint64(end)])
    unknown = np.array([entry["uid"].tobytes() not in known for entry in after], dtype=np.bool_)
    joined: Entries = np.concatenate((passed, after[unknown]))
    return joined


def _is_not_older(newer: Entries, older: Entries) -> NDArray[np.bool_]:
    """Whether, of pairs that overlap, the second is of no epoch before that of the first.

    Of a group only the epochs at its two ends are known. In between they may be smaller than at
    both, after a gap that was accepted.
    """
    group = newer["kind"] == EntryKind.GROUP
    begins_it = group & (older["first_offset"] == newer["first_offset"])
    ends_it = ~group | (older["next_offset"] >= newer["next_offset"])
    not_older: NDArray[np.bool_] = (~begins_it | (older["first_epoch"] >= newer["first_epoch"])) & (
        ~ends_it | (older["last_epoch"] >= newer["last_epoch"])
    )
    return not_older


def _objects(entries: Entries) -> Entries:
    kept: Entries = entries[entries["kind"] != EntryKind.GAP]
    return kept
