"""The newest WAL objects of a node, and the route that gives their bytes to others."""

import asyncio

import httpx
from support.asgi import client_of

from bottomless.model.names import Uid
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.ingest.leaderless.wal_routes import add_wal_routes
from bottomless_server.protocol.wal import WalBytesAsked, wal_bytes
from bottomless_server.runtime.http.app import create_api
from unit.formats.examples import UID

OTHER = Uid("f" * 32)


def bytes_in(cache: WalCache, sequence: int, start: int = 0, size: int = 100) -> bytes | None:
    found = cache.find(UID, sequence, start, size)
    return None if found is None else bytes(found)


def test_a_range_of_an_object_is_found() -> None:
    cache = WalCache(100)
    cache.add(UID, 3, [b"abc", memoryview(b"defg")])

    assert bytes_in(cache, 3) == b"abcdefg"
    assert bytes_in(cache, 3, 2, 3) == b"cde"
    assert bytes_in(cache, 3, 5, 100) == b"fg"
    assert bytes_in(cache, 4) is None
    assert cache.find(OTHER, 3, 0, 1) is None


def test_the_oldest_makes_room_for_the_newest() -> None:
    cache = WalCache(10)
    for sequence in range(4):
        cache.add(UID, sequence, [b"%d" % sequence * 4])

    assert [bytes_in(cache, sequence) for sequence in range(4)] == [None, None, b"2222", b"3333"]
    assert cache.size == 8


def test_what_is_larger_than_all_of_it_does_not_enter() -> None:
    cache = WalCache(10)
    cache.add(UID, 0, [b"small"])
    cache.add(UID, 1, [b"x" * 11])

    assert bytes_in(cache, 0) == b"small"
    assert bytes_in(cache, 1) is None


def test_the_route_answers_from_memory_or_not_at_all() -> None:
    cache = WalCache(100)
    cache.add(UID, 7, [b"0123456789"])
    api = create_api("a node")
    add_wal_routes(api, cache)

    async def ask(sequence: int, start: int, size: int) -> httpx.Response:
        async with client_of(api) as client:
            params = WalBytesAsked(start, size).params()
            return await client.get(wal_bytes(UID, sequence), params=params)

    found = asyncio.run(ask(7, 2, 4))
    assert (found.status_code, found.content) == (200, b"2345")
    missing = asyncio.run(ask(8, 0, 4))
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    assert asyncio.run(ask(7, 0, 0)).status_code == 400
