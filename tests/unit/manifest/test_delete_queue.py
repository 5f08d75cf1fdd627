"""Members of the delete queue, there and back."""

import pytest
from support.manifest import STREAM
from support.object_keys import consumers_key, fragment_key, group_key, registry_key, root_key

from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.delete_queue import OffsetRange, parse_delete_target

UID = Uid("f" * 32)


@pytest.mark.parametrize(
    ("object_key", "first_offset", "height"),
    [
        (fragment_key(STREAM, 10, UID), 10, 0),
        (group_key(STREAM, 10, UID, 3), 10, 3),
    ],
)
@pytest.mark.parametrize("suffix", ["", "?from=12&below=9007199254740992"])
def test_a_member_is_what_it_was(
    object_key: str, first_offset: int, height: int, suffix: str
) -> None:
    target = parse_delete_target((object_key + suffix).encode())

    assert target is not None
    assert target.member == (object_key + suffix).encode()
    assert (target.object_key, target.stream_id, target.uid) == (object_key, STREAM, UID)
    assert (target.first_offset, target.height) == (first_offset, height)
    assert target.range == (OffsetRange(12, 2**53) if suffix else None)


def test_roots_registry_objects_and_snapshots_have_no_range() -> None:
    keys = [
        root_key(STREAM, 1, 2, 3, UID),
        registry_key(STREAM, 7),
        consumers_key(STREAM, 7, UID),
    ]

    found = [parse_delete_target(key.encode()) for key in keys]

    assert [one is not None and one.object_key for one in found] == keys
    assert [one and one.registry_version for one in found] == [None, 7, None]
    assert [parse_delete_target(f"{key}?from=0&below=1".encode()) for key in keys] == [None] * 3


@pytest.mark.parametrize("drive", [0, 7])
@pytest.mark.parametrize("suffix", ["", "?from=12&below=20", "?moved"])
def test_a_copy_and_what_was_moved_come_back(drive: int, suffix: str) -> None:
    key = fragment_key(STREAM, 10, UID, copy=0xC0FFEE)

    target = parse_delete_target((key + suffix).encode(), drive)

    assert target is not None
    assert target.member == (key + suffix).encode()
    assert (target.uid, target.first_offset) == (UID, 10)
    assert (target.drive, target.copy, target.moved) == (drive, 0xC0FFEE, suffix == "?moved")
    assert target.is_unread == (suffix == "")


def test_what_is_left_of_a_move_names_no_object() -> None:
    member = f"default/{STREAM}/data/copies.{5:016x}?from=0&below=64".encode()

    target = parse_delete_target(member, 7)

    assert target is not None
    assert target.member == member
    assert (target.is_of_copies, target.is_of_tree, target.is_unread) == (True, False, True)
    assert (target.copy, target.range) == (5, OffsetRange(0, 64))
    assert parse_delete_target(member.partition(b"?")[0], 7) is None


def test_other_drives_have_fragments_alone() -> None:
    for key in (group_key(STREAM, 10, UID, 1), root_key(STREAM, 1, 2, 3, UID)):
        assert parse_delete_target(key.encode()) is not None
        assert parse_delete_target(key.encode(), 7) is None


@pytest.mark.parametrize(
    "member",
    [
        fragment_key(STREAM, 10, UID).replace(".fragment", f".{0:016x}.fragment").encode(),
        root_key(STREAM, 1, 2, 3, UID).encode() + b"?moved",
        b"",
        b"\xff",
        b"_system/generation.json",
        b"default/x/data/1.fragment",
        fragment_key(STREAM, 10, UID).encode() + b"?from=1",
        fragment_key(STREAM, 10, UID).encode() + b"\n",
        b"../" + fragment_key(STREAM, 10, UID).encode(),
    ],
)
def test_nothing_else_is_a_member(member: bytes) -> None:
    assert parse_delete_target(member) is None
