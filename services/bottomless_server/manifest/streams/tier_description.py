"""Describe as JSON where fragments lie, and what is on its way to other drives."""

from collections.abc import Mapping
from typing import Any

from bottomless.model.drive import DEFAULT_NAME, DEFAULT_NUMBER, MIXED
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move, TierConfig, copy_text
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.damaged_sources import SHOWN_COUNT_MAX
from bottomless_server.manifest.tree.core import move_search
from bottomless_server.manifest.tree.core.drive_totals import DriveTotals, OnDrive
from bottomless_server.manifest.tree.core.promotions import is_in_force
from bottomless_server.manifest.tree.core.tiering import Tiering
from bottomless_server.tree.retention import Totals


class DriveNames:
    """The names of drives by their numbers, as far as a process knows them."""

    def __init__(self, names: Mapping[int, str], tiers: tuple[TierConfig, ...] = ()) -> None:
        self._names = names
        self._tiers = {tier.drive: at for at, tier in enumerate(tiers)}

    def name(self, number: int) -> str | None:
        """The name of a drive; None of one that the settings of the process do not have."""
        return self._names.get(number)

    def tier(self, number: int) -> int | None:
        """The number of the tier that a drive is, counted from 0; None of one that no tier names."""
        return self._tiers.get(self._names.get(number, ""))

    def number(self, name: str) -> int | None:
        """The number of a drive; None of one that the settings do not have."""
        return next((number for number, one in self._names.items() if one == name), None)


def drive_names(context: Context, record: StreamRecord) -> DriveNames:
    """The names of drives, and the tiers of a stream, as this process knows them."""
    names = {drive.number: drive.name for drive in context.drives.configured}
    return DriveNames({DEFAULT_NUMBER: DEFAULT_NAME, **names}, record.config.tiers)


def describe_tiers(
    record: StreamRecord, found: DriveTotals, names: DriveNames, now: int, floor: int
) -> dict[str, Any]:
    """The answer of GET but for what is damaged; `found` has what lies on each drive, `now` is in ms
    since 1970, and `floor` is the first offset of the stream."""
    tiers = record.config.tiers
    empty = {names.number(tier.drive) for tier in tiers} - {None}
    drives = {number: OnDrive() for number in empty if number is not None}
    drives |= {number: one for number, one in found.items() if number != MIXED}
    items = [_of_drive(number, one, names) for number, one in drives.items()]
    items.sort(key=lambda item: (item["tier"] is None, item["tier"], item["number"]))
    return {
        "tiers": [tier.model_dump(mode="json") for tier in tiers],
        "drives": items,
        "several": _totals(found.get(MIXED, OnDrive()).totals),
        "moves": [describe_move(move, names) for move in record.moves],
        "promoted": [
            {
                "from_offset": one.first_offset,
                "to_offset": one.next_offset,
                "until": format_timestamp(one.until),
            }
            for one in record.promoted
            if is_in_force(one, now, floor)
        ],
    }


def describe_move(move: Move, names: DriveNames) -> dict[str, Any]:
    """A move under way."""
    return {
        "move": copy_text(move.copy),
        "from_offset": move.first_offset,
        "to_offset": move.next_offset,
        "from_drive": names.name(move.from_drive),
        "to_drive": names.name(move.to_drive),
        "taken_up": move.session is not None,
        "at": format_timestamp(move.at),
    }


def describe_damaged(
    context: Context, record: StreamRecord, floor: int, names: DriveNames
) -> list[dict[str, Any]]:
    """The fragments that could not be moved, as far as this process was told."""
    known, now = context.damaged_sources, context.clock()
    return [
        {
            "from_offset": one.first_offset,
            "to_offset": one.next_offset,
            "drive": names.name(one.drive),
            "tries": one.tries,
            "again_at": format_timestamp(now + known.wait_ms(one)),
        }
        for one in known.of(record.stream_id, floor)[:SHOWN_COUNT_MAX]
    ]


def describe_tiering(tiering: Tiering | None, names: DriveNames) -> dict[str, Any]:
    """The answer of a preview but for what is damaged; None of a stream without a policy."""
    if tiering is None:
        return {"moves": [], "waiting": []}
    return {
        "moves": [_wanted(move, names) for move in tiering.moves],
        "waiting": [
            {
                "from_drive": names.name(source),
                "to_drive": names.name(target),
                **_totals(waiting),
            }
            for (source, target), waiting in sorted(tiering.waiting.items())
        ],
    }


def describe_entered(
    moves: tuple[Move, ...], left: Totals | None, names: DriveNames
) -> dict[str, Any]:
    """The answer where moves were entered, with what there was no room for if that is known."""
    told = {"moves": [describe_move(move, names) for move in moves]}
    return told if left is None else {**told, "left": _totals(left)}


def _wanted(move: move_search.Move, names: DriveNames) -> dict[str, Any]:
    return {
        "from_offset": move.first_offset,
        "to_offset": move.next_offset,
        "from_drive": names.name(move.from_drive),
        "to_drive": names.name(move.to_drive),
        **_totals(move.moved),
    }


def _of_drive(number: int, one: OnDrive, names: DriveNames) -> dict[str, Any]:
    return {
        "drive": names.name(number),
        "number": number,
        "tier": names.tier(number),
        **_totals(one.totals),
        "first_timestamp": _shown(one.first_timestamp),
        "last_timestamp": _shown(one.last_timestamp),
    }


def _totals(found: Totals) -> dict[str, int]:
    return {
        "fragments": found.fragment_count,
        "bytes": found.byte_size,
        "records": found.record_count,
    }


def _shown(timestamp: int | None) -> str | None:
    return None if timestamp is None else format_timestamp(timestamp)
