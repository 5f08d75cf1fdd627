"""Room for the bytes of appends: what is here is bounded, what was only declared keeps nobody out."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.asgi import scope_of
from support.waiting import eventually

from bottomless.model.limits import KIB
from bottomless.model.names import StreamId
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.room import BodyReservation
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, problem
from unit.ingest.staging import commit, stage

ONE, TWO = StreamId("one"), StreamId("two")


def test_a_body_larger_than_a_bound_passes_alone_piece_by_piece() -> None:
    admission = Admission(stream_size_max=10, total_size_max=10)
    assert all(admission.take(ONE, 20, own=20 * number) for number in range(5))
    assert not admission.take(ONE, 1)
    assert not admission.take(TWO, 1)


@given(steps=st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 12)), max_size=40))
def test_the_bounds_hold_and_everything_comes_back(steps: list[tuple[StreamId, int]]) -> None:
    admission = Admission(stream_size_max=10, total_size_max=15)
    held: list[tuple[StreamId, int]] = []
    for stream_id, size in steps:
        if admission.take(stream_id, size):
            held.append((stream_id, size))
        of_one = [size for one, size in held if one == stream_id]
        assert sum(of_one) <= 10 or max(of_one) > 10
        assert admission.total == sum(size for _, size in held)
    for one in held:
        admission.give_back(*one)
    assert admission.total == 0


DECLARED = 1_000_000
BOUNDS: dict[str, Any] = {
    "ingest_stream_in_flight_bytes_max": 2 * DECLARED,
    "ingest_in_flight_bytes_max": 3 * DECLARED,
    "ingest_in_flight_wait_ms": 1_000,
}


class Unfinished:
    """A request that declares a body, sends a part of it, and then waits."""

    def __init__(self, harness: IngestHarness, sent: int) -> None:
        self._pieces = [b" " * 50_000] * (sent // 50_000)
        self._rest = asyncio.Event()
        self.status = 0
        self.task = asyncio.create_task(self._run(harness))

    async def _run(self, harness: IngestHarness) -> None:
        headers = {"content-type": "application/json", "content-length": str(DECLARED)}
        scope = scope_of(headers, method="POST", path=ROUTE)
        await harness.service.public(scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(), "more_body": True}
        await self._rest.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)

    async def leave(self) -> None:
        self._rest.set()
        await self.task


async def unfinished(harness: IngestHarness, count: int, sent: int) -> list[Unfinished]:
    """What they said is known."""
    made = [Unfinished(harness, sent) for _ in range(count)]
    await eventually(lambda: kept(harness) == 2 * DECLARED)
    return made


def kept(harness: IngestHarness) -> int:
    return harness.service.room.admission.total


async def a_harness(tmp_path: Path) -> IngestHarness:
    return await (await IngestHarness(tmp_path / "ingest", **BOUNDS).declare()).start()


async def test_bodies_that_do_not_come_keep_nobody_out(tmp_path: Path) -> None:
    """Two of them once held all the room of their stream, for as long as HTTP bore with them."""
    harness = await a_harness(tmp_path)
    silent = await unfinished(harness, 2, sent=0)
    harness.time.advance(300)

    assert (await harness.append("x" * 60_000)).status_code == 200

    assert kept(harness) == DECLARED, "no more was taken from them than was needed"
    for one in silent:
        await one.leave()
    assert kept(harness) == 0
    await harness.aclose()


async def test_while_what_they_said_was_believed_for_ever_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the same without the end of patience."""
    monkeypatch.setattr(BodyReservation, "is_stalled", lambda *_: False)
    harness = await a_harness(tmp_path)
    silent = await unfinished(harness, 2, sent=0)
    harness.time.advance(300)

    assert problem(await harness.append("x" * 60_000)) == (503, "overloaded")

    for one in silent:
        await one.leave()
    assert kept(harness) == 0
    await harness.aclose()


async def test_a_body_that_comes_keeps_its_room_and_one_that_was_late_gets_it_again(
    tmp_path: Path,
) -> None:
    harness = await a_harness(tmp_path)
    room = harness.service.room
    async with room.body(STREAM, DECLARED) as coming, room.body(STREAM, DECLARED) as late:
        for _ in range(4):
            harness.time.advance(200)
            await coming.noting(a_piece)()
        assert problem(await harness.append("x" * DECLARED)) == (503, "overloaded")
        assert kept(harness) == DECLARED
        await late.noting(a_piece)()
        assert kept(harness) == DECLARED + PIECE
        assert (await harness.append("x" * 60_000)).status_code == 200
    assert kept(harness) == 0
    await harness.aclose()


PIECE = 70_000


async def a_piece() -> Any:
    return {"type": "http.request", "body": b" " * PIECE, "more_body": True}


async def test_bytes_that_are_here_are_bounded(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path)
    nearly = await unfinished(harness, 3, sent=DECLARED - 50_000)
    harness.time.advance(300)

    assert problem(await harness.append("x" * 150_000)) == (503, "overloaded")
    assert kept(harness) == 2 * (DECLARED - 50_000)
    admission = harness.service.room.admission
    assert admission.take(TWO, 900_000), "another stream has its own room"
    admission.give_back(TWO, 900_000)

    for one in nearly:
        await one.leave()
    assert 503 in {one.status for one in nearly}, "the third waited for room, and got none"
    assert kept(harness) == 0
    assert (await harness.append("x" * 150_000)).status_code == 200
    await harness.aclose()


def test_a_group_is_at_most_half_of_the_room_of_its_stream() -> None:
    """It was all of it, and a commit then waited for a moment in which nobody appends."""
    assert (
        IngestSettings().group_bytes_max * 2 == IngestSettings().ingest_stream_in_flight_bytes_max
    )
    assert IngestSettings(ingest_stream_in_flight_bytes_max=1000).group_bytes_max == 500
    assert IngestSettings(ingest_in_flight_bytes_max=600).group_bytes_max == 300
    for room in ("ingest_stream_in_flight_bytes_max", "ingest_in_flight_bytes_max"):
        given: dict[str, Any] = {room: 16 * KIB - 1, "ingest_group_bytes_max": 8 * KIB}
        with pytest.raises(ValidationError, match=f"more than half of BOTTOMLESS_{room.upper()}"):
            IngestSettings(**given)


async def test_who_leaves_the_line_or_is_too_late_holds_nothing(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path)
    room = harness.service.room
    async with room.hold(STREAM, 2 * DECLARED):
        late = asyncio.create_task(harness.append("x"))
        left = asyncio.create_task(room.take(STREAM, 100))
        await eventually(lambda: room.admission.waiting_count == 2)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert problem(await late) == (503, "overloaded")
    assert (kept(harness), room.admission.waiting_count) == (0, 0)
    assert (await harness.append("x")).status_code == 200
    await harness.aclose()


async def test_a_commit_gets_its_turn_beside_appends_that_never_end(tmp_path: Path) -> None:
    """The room of the stream is for 16 KiB; eight writers keep it full, and a part needs half."""
    harness = IngestHarness(
        tmp_path / "ingest",
        ingest_stream_in_flight_bytes_max=16 * KIB,
        ingest_group_bytes_max=8 * KIB,
    )
    await (await harness.declare()).start()
    ids = [await stage(harness, "x" * 7 * KIB) for _ in range(4)]
    stop = False

    async def write() -> None:
        while not stop:
            assert (await harness.append("y" * 4 * KIB)).status_code in (200, 503)

    writers = [asyncio.create_task(write()) for _ in range(8)]
    await eventually(lambda: kept(harness) > 12 * KIB)
    answer = await commit(harness, *ids)
    stop = True
    await asyncio.gather(*writers)

    assert (answer.status_code, answer.json()["count"]) == (200, 4)
    await harness.aclose()
