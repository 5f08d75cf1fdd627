"""JSON objects in the bucket that carry their own checksum, in one canonical form.

People must be able to read them with nothing but a pager, and a rebuild must be able to
trust them: so the last member is the CRC-32C of the object without it, and any other form
of the same values is refused as damage. Spec: docs/formats.md, "Stream registry object"
and "Consumers snapshot".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, check_served, corrupt, crc32c

Readers = Mapping[str, Callable[[Any], Any]]


def seal(members: Mapping[str, Any], version: int = VERSION) -> bytes:
    """Encode an object with its version at the front and its checksum at the end."""
    whole = {"format": version, **members}
    crc = crc32c(orjson.dumps(whole))
    return orjson.dumps({**whole, "crc32c": f"{crc:08x}"})


def unseal(what: str, data: bytes, names: Sequence[str], version: int = VERSION) -> dict[str, Any]:
    """Read the members of an object that `seal` wrote; they must be exactly `names`, in that order.

    Raises:
        NotServed: it says that it is of a later version.
        Corrupt: it is damaged, of another version, or has other members.
    """
    members = parse_object(what, data, version)
    members.pop("crc32c", None)
    check(what, members.keys() == set(names), "its members are not those of its version")
    try:
        sealed = seal({name: members[name] for name in names}, version)
    except orjson.JSONEncodeError as error:
        raise corrupt(what, "it is nested too deeply") from error
    check(what, sealed == data, "its checksum does not match, or its form is not the canonical one")
    return members


def read_members(what: str, members: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    """Read each member by its reader; `members` must have all that `readers` names.

    Raises:
        Corrupt: one of them is not of its type, or is out of its range.
    """
    try:
        return {name: read(members[name]) for name, read in readers.items()}
    except (TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error


def sealed_names(data: bytes) -> list[str]:
    """List the names of the members between the version and the checksum, as they stand there.

    Nothing is checked: `unseal` with these names checks that the object is whole, and nothing else.
    """
    try:
        members = orjson.loads(data)
    except orjson.JSONDecodeError:
        return []
    names = list(members) if isinstance(members, dict) else []
    return [name for name in names if name not in ("format", "crc32c")]


def version_of(data: bytes) -> int | None:
    """Read which version an object claims to have; None where it claims none that can be read."""
    try:
        members = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    version = members.get("format") if isinstance(members, dict) else None
    return version if type(version) is int else None


def parse_object(what: str, data: bytes, wanted: int = VERSION) -> dict[str, Any]:
    """Read the members of a JSON object of a wanted version, without the version itself.

    Raises:
        NotServed: it says that it is of a later version. Nobody can tell whether it is damaged.
        Corrupt: it is something else.
    """
    try:
        members = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise corrupt(what, "it is not JSON") from error
    check(what, isinstance(members, dict), "it is not an object")
    version = members.pop("format", None)
    check(what, type(version) is int, "it names no version")
    unknown = f"version {version} is not known, only {wanted}"
    check(what, version >= wanted, unknown)
    check_served(what, version == wanted, unknown)
    return dict(members)
