"""A stream whose fragments lie on several drives: each task opens the store that its fragments are in."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self, cast

import pytest

from bottomless.client import Client
from bottomless.client.fragments import Fragment
from bottomless.model.names import StreamId
from bottomless.spark.jobs.verify import rounds_of
from bottomless.spark.options import parse_options
from bottomless.spark.partitions import plan_partitions
from bottomless.spark.snapshot import Snapshot
from bottomless.spark.store import StorePlace

STREAM: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
HERE: Final = {"kind": "file", "root": "/objects"}
SHELF: Final = {"kind": "file", "root": "/mnt/shelf"}
COLD: Final = {"kind": "s3", "root": "bucket/cold", "endpoint": "http://s3", "path_style": True}
STORES: Final[Sequence[Mapping[str, Any]]] = (HERE, HERE, SHELF, COLD, HERE)


class Listed:
    """A client that knows one list."""

    def fragments(self, name: str, **_: object) -> Iterator[Fragment]:
        assert name == "orders"
        for number, store in enumerate(STORES):
            first = 10 * number
            yield Fragment(f"{number}", first, first + 10, 0, 0, 1000, 900, f"{number}.f", store)


def test_each_share_names_the_store_of_its_fragments_and_the_tail_none() -> None:
    options = parse_options({"url": "http://x", "stream": "orders", "mode": "direct"})
    client = cast("Client", Listed())

    planned = plan_partitions(client, options, Snapshot(STREAM, 0, 55), None)

    roots = [None if one.place is None else one.place.root for one in planned]
    assert roots == ["/objects", "/mnt/shelf", "bucket/cold", "/objects", None]
    assert [(one.share.first_offset, one.share.next_offset) for one in planned] == [
        (0, 20),
        (20, 30),
        (30, 40),
        (40, 50),
        (50, 55),
    ]
    assert planned[2].place == StorePlace("s3", "bucket/cold", "http://s3", None, True)


class Items:
    """A client that lists items as the reader shows them, a gap between them."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_fragments(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        for number, store in enumerate(STORES):
            bounds = {"first_offset": 10 * number, "last_offset": 10 * number + 9}
            if number == 1:
                yield {"gap": "damaged", **bounds}
                continue
            yield {
                **bounds,
                "id": f"{number}",
                "object_key": f"{number}.f",
                "store": store,
                "first_timestamp": "2026-11-27T00:00:00.000Z",
                "last_timestamp": "2026-11-27T00:00:00.000Z",
                "record_count": 10,
                "size_bytes": 1000,
                "index_position": 900,
                "crc32c": "00000000",
            }


def test_a_round_of_the_verification_is_of_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottomless.client.Client", Items)
    options = parse_options({"url": "http://x", "stream": "orders", "mode": "direct"})

    rounds = list(rounds_of(options, Snapshot(STREAM, 0, 50), 10**9))

    assert [[one.fragment_id for one in each.fragments] for each in rounds] == [
        ["0"],
        ["2"],
        ["3"],
        ["4"],
    ]
    assert [each.place and each.place.root for each in rounds] == [
        "/objects",
        "/mnt/shelf",
        "bucket/cold",
        "/objects",
    ]
    assert [each.next_offset for each in rounds] == [20, 30, 40, 50]
    assert all(not each.faults for each in rounds)
