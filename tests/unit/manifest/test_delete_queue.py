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


@pytest.mark.parametrize(
    "member",
    [
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
