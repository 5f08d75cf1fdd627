"""The registry of drives, and what each drive says of itself: sealed JSON, in objects of their own.

    {prefix of drive 0}/_system/drives.{version:010d}.json
    {prefix of each other drive}/_system/drive.json

Their form is that of sealed_json.py. The registry says for ever which number is which drive; the
marker is how a process knows that a store is that drive, and not a directory whose mount is gone.
A registry in which a drive is lost is of version 3, one in which a drive is about to be retired of
version 2, any other of version 1.
Their golden files are not frozen yet. Spec: docs/formats.md, "Drive registry object" and "Drive marker".
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.json_readers import each, flag, number, row, text
from bottomless.formats.sealed_json import read_members, seal, unseal, version_of
from bottomless.model.drive import (
    NUMBER_MAX,
    REGISTRY_VERSION_MAX,
    DriveMarker,
    DriveRegistry,
    RegisteredDrive,
    check_drives,
)
from bottomless.model.names import Uid, parse_uid

DRIVES_PREFIX: Final = "_system/drives."
"""The keys of all versions of the registry begin with it."""
DRIVE_MARKER_KEY: Final = "_system/drive.json"

_VERSION_2: Final = 2
_VERSION_3: Final = 3
_REGISTRY: Final = "drive registry object"
_MARKER: Final = "drive marker"
_KEY: Final = re.compile(r"_system/drives\.([0-9]{10})\.json", re.ASCII)


class _Retiring(NamedTuple):
    number: int
    operation: Uid


def drives_key(version: int) -> str:
    """Make the key of one version of the registry of drives."""
    return f"{DRIVES_PREFIX}{version:010d}.json"


def parse_drives_key(object_key: str) -> int | None:
    """Read the version from the key of a registry of drives; None for any other key."""
    match = _KEY.fullmatch(object_key)
    return None if match is None else int(match[1])


def encode_drives(registry: DriveRegistry) -> bytes:
    """Encode the registry of drives: sealed JSON.

    Raises:
        ValueError: its drives cannot stand in one registry.
    """
    check_drives(registry.drives)
    members = {"version": registry.version, "drives": [list(one[:4]) for one in registry.drives]}
    retiring = [[one.number, one.retiring] for one in registry.drives if one.retiring]
    lost = [one.number for one in registry.drives if one.lost]
    if lost:
        return seal({**members, "retiring": retiring, "lost": lost}, _VERSION_3)
    if not retiring:
        return seal(members)
    return seal({**members, "retiring": retiring}, _VERSION_2)


def decode_drives(data: bytes) -> DriveRegistry:
    """Read what `encode_drives` wrote.

    Raises:
        NotServed: it is of a later version of the format.
        Corrupt: it is damaged, or is not such an object.
    """
    found = version_of(data)
    version = found if found is not None and found in _READERS else VERSION
    read = _read(_REGISTRY, data, _READERS[version], version)
    retiring, lost = dict(read.pop("retiring", [])), set(read.pop("lost", []))
    drives = tuple(
        one._replace(retiring=retiring.get(one.number), lost=one.number in lost)
        for one in read["drives"]
    )
    registry = DriveRegistry(read["version"], drives)
    try:
        written = encode_drives(registry)
    except (ValueError, InvalidRequest) as error:
        raise corrupt(_REGISTRY, "its drives contradict each other") from error
    check(_REGISTRY, written == data, "what is about to be retired, or lost, is not as written")
    return registry


def encode_marker(marker: DriveMarker) -> bytes:
    """Encode what a drive says of itself: sealed JSON."""
    return seal(marker._asdict())


def decode_marker(data: bytes) -> DriveMarker:
    """Read what `encode_marker` wrote.

    Raises:
        NotServed: it is of a later version of the format.
        Corrupt: it is damaged, or is not such an object.
    """
    return DriveMarker(**_read(_MARKER, data, MARKER_READERS))


def _read(
    what: str, data: bytes, readers: Mapping[str, Callable[[Any], Any]], version: int = VERSION
) -> dict[str, Any]:
    members = unseal(what, data, list(readers), version)
    return read_members(what, members, readers)


_number: Final = number(1, NUMBER_MAX)


def _uid(value: Any) -> str:
    return parse_uid(text(value))


MARKER_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {"number": _number, "drive_id": _uid}
"""How each member of a marker is read, in the order in which it is written."""
REGISTRY_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "version": number(1, REGISTRY_VERSION_MAX),
    "drives": each(row(RegisteredDrive, text, _number, _uid, flag)),
}
"""How each member of a registry is read, in the order in which it is written."""
_READERS_2: Final = {**REGISTRY_READERS, "retiring": each(row(_Retiring, _number, _uid))}
_READERS: Final[Mapping[int, Mapping[str, Callable[[Any], Any]]]] = {
    VERSION: REGISTRY_READERS,
    _VERSION_2: _READERS_2,
    _VERSION_3: {**_READERS_2, "lost": each(_number)},
}
"""How each member of a registry is read, by the version of the registry."""
