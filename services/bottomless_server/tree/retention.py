"""Find how much of the front of a manifest may go, by age, by bytes or up to an offset.

Only whole fragments go, and the last one stays. A group goes whole or in part: then the
descent asks for that one group and goes on in it, so that a cut costs at most one
request for each height, however much it removes.

    descent = find_cut(root, bound)
    entry = next(descent)          the group that may go in part
    entry = descent.send(node)     … loaded; the next one below it
    StopIteration.value            the cut

An entry of a group that is cut in part keeps its range, because its key has its first
offset, and carries the bytes, records and fragments that are still live below.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.manifest import Entries, EntryKind, Node, taken

UNKNOWN_TIME: Final = -(2**63)
"""Means keep: what nobody knows the age of is not deleted for its age."""

SUMMED: Final = ("fragment_count", "byte_size", "record_count")


@dataclass(frozen=True, slots=True)
class OlderThan:
    """Fragments whose newest record is older than this may go."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class MoreThan:
    """The oldest fragments may go until no more than this many bytes are left."""

    size: int


@dataclass(frozen=True, slots=True)
class Below:
    """Fragments that end at or below this offset may go."""

    offset: int


Bound = OlderThan | MoreThan | Below


class Totals(NamedTuple):
    fragment_count: int = 0
    byte_size: int = 0
    record_count: int = 0

    def plus(self, other: "Totals") -> "Totals":
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "Totals") -> "Totals":
        return Totals(*(a - b for a, b in zip(self, other, strict=True)))


class Cut(NamedTuple):
    """Everything below `floor` goes."""

    floor: int
    gone: Totals = Totals()
    newest_timestamp: int | None = None
    """The newest timestamp of what goes; None if nothing does."""


Descent = Generator[np.void, Node, Cut]
"""Yields the entry of the group to load, wants the node, returns the cut."""


def find_cut(root: Node, bound: Bound) -> Descent:
    """The largest cut that the bound allows and that leaves the last fragment."""
    total = totals(root.entries)
    spare = max(total.fragment_count - 1, 0)
    excess = total.byte_size - bound.size if isinstance(bound, MoreThan) else 0
    return (yield from _find(root.entries, root.first_offset, bound, excess, spare))


def find_floor(root: Node, floor: int) -> Descent:
    """The cut of all that ends at or below an offset, the last fragment too.

    It ends at `floor` where something begins or ends there, and below it elsewhere."""
    spare = totals(root.entries).fragment_count
    return (yield from _find(root.entries, root.first_offset, Below(floor), 0, spare))


def larger(cuts: tuple[Cut, ...], floor: int) -> Cut:
    """The cut that goes furthest; one of nothing where there is none."""
    return max(cuts, key=lambda cut: cut.floor, default=Cut(floor))


def _find(entries: Entries, floor: int, bound: Bound, excess: int, spare: int) -> Descent:
    whole, partly = _verdict(entries, bound, excess, spare)
    count = len(entries) if bool(np.all(whole)) else int(np.argmin(whole))
    cut = _cut_of(entries[:count], floor)
    if count == len(entries) or not partly[count]:
        return cut
    node = yield entries[count]
    inner = yield from _find(
        live_entries(node, floor, totals(entries[count : count + 1])),
        cut.floor,
        bound,
        excess - cut.gone.byte_size,
        spare - cut.gone.fragment_count,
    )
    if inner.floor == cut.floor:
        return cut
    return Cut(inner.floor, cut.gone.plus(inner.gone), inner.newest_timestamp)


def _verdict(
    entries: Entries, bound: Bound, excess: int, spare: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Decide for each entry whether it may go whole, and whether a group may go in part."""
    groups = entries["kind"] == EntryKind.GROUP
    match bound:
        case OlderThan(timestamp):
            # Times never fall along the entries, so an unknown one can only be the first below.
            known = (entries["first_timestamp"] != UNKNOWN_TIME) & (
                entries["last_timestamp"] != UNKNOWN_TIME
            )
            whole = known & (entries["last_timestamp"] < timestamp)
            partly = known & (entries["first_timestamp"] < timestamp)
        case MoreThan():
            after = np.cumsum(entries["byte_size"].astype(np.int64))
            partly = after - entries["byte_size"].astype(np.int64) < excess
            whole = partly & (~groups | (after <= excess))
        case Below(offset):
            whole = entries["next_offset"] <= np.uint64(offset)
            partly = entries["first_offset"] < np.uint64(offset)
    fragments = entries["fragment_count"].astype(np.int64)
    through = np.cumsum(fragments)
    # Where no fragment may go any more, a gap at the front of a group still may.
    return whole & (through <= spare), groups & partly & (through - fragments <= spare)


def _cut_of(gone: Entries, floor: int) -> Cut:
    if len(gone) == 0:
        return Cut(floor)
    return Cut(int(gone["next_offset"][-1]), totals(gone), int(gone["last_timestamp"][-1]))


def totals(entries: Entries) -> Totals:
    return Totals(*(int(entries[name].sum()) for name in SUMMED))


def live_entries(node: Node, floor: int, live: Totals) -> Entries:
    """The entries of a group at or above the floor, given what of it is live.

    A group below it may be cut in part too. Its own object does not know, but all that is
    live and not in the others is in it.
    """
    entries = node.entries[node.entries["next_offset"] > np.uint64(floor)].copy()
    if len(entries) and int(entries["first_offset"][0]) < floor:
        _set_totals(entries, live.minus(totals(entries[1:])))
    return entries


def _set_totals(entries: Entries, first: Totals) -> None:
    assert min(first) >= 0, "more is gone than there was"
    for name, value in zip(SUMMED, first, strict=True):
        entries[name][0] = value


class Retired(NamedTuple):
    """What no reader can reach any more: of this entry's object all between two offsets."""

    entry: np.void
    first_offset: int
    next_offset: int


class Edited(NamedTuple):
    root: Node
    retired: tuple[Retired, ...] = ()


def cut_front(root: Node, cut: Cut) -> Edited:
    """The root without what the cut removes, and what that makes unreachable.

    Uid, version and epoch stay for the publisher to set.
    """
    assert root.first_offset <= cut.floor <= root.next_offset, "the floor leaves the manifest"
    going = root.entries["next_offset"] <= np.uint64(cut.floor)
    kept, filters = taken(root.entries[~going], root.filters)
    retired = [_retired(entry, root.first_offset, cut.floor) for entry in root.entries[going]]
    if len(kept) and int(kept["first_offset"][0]) < cut.floor:
        assert kept["kind"][0] == EntryKind.GROUP, "a cut goes between fragments"
        inside = cut.gone.minus(totals(root.entries[going]))
        _set_totals(kept, totals(kept[:1]).minus(inside))
        retired.append(_retired(root.entries[~going][0], root.first_offset, cut.floor))
    return Edited(
        replace(root, first_offset=cut.floor, entries=kept, filters=filters),
        tuple(one for one in retired if one.entry["kind"] != EntryKind.GAP),
    )


def _retired(entry: np.void, old_floor: int, floor: int) -> Retired:
    first, end = int(entry["first_offset"]), int(entry["next_offset"])
    return Retired(entry, max(first, old_floor), min(end, floor))


def emptied(root: Node) -> Edited:
    """The root without any entry: its range is empty at its end, which stays."""
    everything = Cut(root.next_offset, totals(root.entries))
    return cut_front(root, everything)
