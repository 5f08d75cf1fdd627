"""The registry of drives, and what a drive says of itself."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt, InvalidRequest, NotServed
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    DRIVES_PREFIX,
    MARKER_READERS,
    REGISTRY_READERS,
    decode_drives,
    decode_marker,
    drives_key,
    encode_drives,
    encode_marker,
    parse_drives_key,
)
from bottomless.formats.sealed_json import seal
from bottomless.model.drive import (
    NUMBER_MAX,
    REGISTRY_VERSION_MAX,
    DriveRegistry,
    RegisteredDrive,
    parse_drive_name,
)
from bottomless.model.names import Uid
from unit.formats.examples import (
    DRIVE_MARKER,
    DRIVE_REGISTRY,
    OTHER_UID,
    UID,
    assert_refuses_damage,
)


def sealed(encoded: bytes, **members: Any) -> bytes:
    """A sealed object with other members."""
    there = orjson.loads(encoded)
    del there["format"], there["crc32c"]
    return seal({**there, **members})


@given(st.sets(st.integers(1, NUMBER_MAX)), st.integers(1, REGISTRY_VERSION_MAX), st.booleans())
def test_any_registry_comes_back(numbers: set[int], version: int, retired: bool) -> None:
    drives = tuple(
        RegisteredDrive(f"drive-{number}", number, Uid(f"{number:032x}"), retired)
        for number in sorted(numbers)
    )
    registry = DriveRegistry(version, drives)
    assert decode_drives(encode_drives(registry)) == registry


RETIRING = DriveRegistry(
    4, (DRIVE_REGISTRY.drives[0], DRIVE_REGISTRY.drives[1]._replace(retiring=OTHER_UID))
)
"""One that says of a drive that it is about to be retired."""


def test_a_drive_that_is_about_to_be_retired_makes_version_2() -> None:
    """A release that does not know it, and would put fragments there, does not start."""
    data = encode_drives(RETIRING)
    assert orjson.loads(data)["format"] == 2
    assert orjson.loads(data)["retiring"] == [[2, OTHER_UID]]
    assert decode_drives(data) == RETIRING
    assert orjson.loads(encode_drives(DRIVE_REGISTRY))["format"] == 1
    assert_refuses_damage(decode_drives, data)


@pytest.mark.parametrize(
    "retiring",
    [
        [],
        [[2]],
        [[2, "no id"]],
        [[1, OTHER_UID]],
        [[3, OTHER_UID]],
        [[2, OTHER_UID], [2, OTHER_UID]],
        None,
    ],
)
def test_what_is_about_to_be_retired_is_said_in_one_way(retiring: Any) -> None:
    there = orjson.loads(encode_drives(RETIRING))
    del there["format"], there["crc32c"]
    with pytest.raises(Corrupt):
        decode_drives(seal({**there, "retiring": retiring}, 2))
    with pytest.raises(Corrupt):
        decode_drives(seal(there))


def test_a_drive_takes_fragments_unless_it_is_retired_or_about_to_be() -> None:
    assert [drive.is_open for drive in DRIVE_REGISTRY.drives] == [False, True]
    assert [drive.is_open for drive in RETIRING.drives] == [False, False]


LOST = DriveRegistry(
    5, (DRIVE_REGISTRY.drives[0]._replace(lost=True), RETIRING.drives[1]._replace(lost=True))
)
"""One in which both drives are lost: the first is retired, and the second about to be."""


def test_a_drive_that_is_lost_makes_version_3() -> None:
    """A release that does not know it, and would ask the drive, does not start."""
    data = encode_drives(LOST)
    assert orjson.loads(data)["format"] == 3
    assert orjson.loads(data)["lost"] == [1, 2]
    assert decode_drives(data) == LOST
    assert [drive.is_open for drive in LOST.drives] == [False, False]
    assert_refuses_damage(decode_drives, data)


@pytest.mark.parametrize("lost", [[], [3], [2, 1], [1, 1], [0], ["1"], None])
def test_what_is_lost_is_said_in_one_way(lost: Any) -> None:
    there = orjson.loads(encode_drives(LOST))
    del there["format"], there["crc32c"]
    with pytest.raises(Corrupt):
        decode_drives(seal({**there, "lost": lost}, 3))


def test_a_marker_comes_back() -> None:
    assert decode_marker(encode_marker(DRIVE_MARKER)) == DRIVE_MARKER


def test_every_damage_is_refused() -> None:
    assert_refuses_damage(decode_drives, encode_drives(DRIVE_REGISTRY))
    assert_refuses_damage(decode_marker, encode_marker(DRIVE_MARKER))


def test_one_of_a_later_version_is_left_to_who_can_read_it() -> None:
    for decode, data in (
        (decode_drives, encode_drives(DRIVE_REGISTRY)),
        (decode_marker, encode_marker(DRIVE_MARKER)),
    ):
        with pytest.raises(NotServed):
            decode(orjson.dumps(orjson.loads(data) | {"format": 4}))


@pytest.mark.parametrize("name", REGISTRY_READERS)
def test_a_member_of_a_registry_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(Corrupt):
        decode_drives(sealed(encode_drives(DRIVE_REGISTRY), **{name: ["no"]}))


@pytest.mark.parametrize("name", MARKER_READERS)
def test_a_member_of_a_marker_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(Corrupt):
        decode_marker(sealed(encode_marker(DRIVE_MARKER), **{name: ["no"]}))


@pytest.mark.parametrize(
    "drives",
    [
        [["cold", 0, UID, False]],
        [["cold", 255, UID, False]],
        [["cold", 1, "no id", False]],
        [["default", 1, UID, False]],
        [["../up", 1, UID, False]],
        [["cold", 1, UID, 0]],
        [["cold", 1, UID]],
        [["cold", 2, UID, False], ["shelf", 1, OTHER_UID, False]],
        [["cold", 1, UID, False], ["shelf", 1, OTHER_UID, False]],
        [["cold", 1, UID, True], ["cold", 2, OTHER_UID, False]],
        [["cold", 1, UID, True], ["shelf", 2, UID, False]],
    ],
)
def test_drives_that_contradict_each_other_are_refused(drives: list[Any]) -> None:
    with pytest.raises(Corrupt):
        decode_drives(sealed(encode_drives(DRIVE_REGISTRY), drives=drives))
    registry = DriveRegistry(1, tuple(RegisteredDrive(*[*each, False][:4]) for each in drives))
    if all(len(each) == 4 and isinstance(each[3], bool) for each in drives):
        with pytest.raises((ValueError, InvalidRequest)):
            encode_drives(registry)


def test_a_key_says_its_version_and_the_highest_sorts_last() -> None:
    keys = [drives_key(version) for version in (1, 9, 10, REGISTRY_VERSION_MAX)]
    assert keys == sorted(keys)
    assert [parse_drives_key(key) for key in keys] == [1, 9, 10, REGISTRY_VERSION_MAX]
    assert all(key.startswith(DRIVES_PREFIX) for key in keys)
    for other in (DRIVE_MARKER_KEY, "_system/drives.1.json", keys[0] + "\n", "x" + keys[0]):
        assert parse_drives_key(other) is None


@pytest.mark.parametrize("name", ["", "-cold", "Cold", "a.b", "a/b", "é", "x" * 65, "default"])
def test_what_is_no_name_of_a_drive_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name of (a )?drive"):
        parse_drive_name(name)
