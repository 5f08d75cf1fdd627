"""Random appends, repeats, failures, crashes and frees, against a model of a few lines.

The model knows what a client knows: what it sent, what it was told, and that it sends again
whatever it was not told the outcome of. At the end every record that it sent on is in the
stream exactly once, at the offset that it was told.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.waiting import eventually

from unit.ingest.harness import ROUTE, IngestHarness, broken_disk, no_space

SMALL: dict[str, Any] = {"ingest_segment_chunk_count_max": 3, "ingest_local_keep_ms": 1_000}
REMEMBERED = 5


@dataclass
class Client:
    """One producer: the appends that it was told are stored, in order."""

    name: str
    strict: bool
    sent: list[tuple[int, list[str], int]] = field(default_factory=list)
    """First number, values, first offset."""

    @property
    def next_number(self) -> int:
        return self.sent[-1][0] + len(self.sent[-1][1]) if self.sent else 0

    def values(self, first: int, count: int, tag: str = "") -> list[str]:
        return [f"{self.name}{tag}:{number}" for number in range(first, first + count)]


class Asked(Protocol):
    """A node, or several of them in turn."""

    @property
    def client(self) -> httpx.AsyncClient: ...


A = TypeVar("A", bound=Asked)


class ProducerModel(Generic[A]):
    """What the producers know, beside what they write to."""

    def __init__(self, harness: A) -> None:
        self.harness = harness
        self.clients = [Client("a", strict=True), Client("b", strict=True), Client("h", False)]
        self.stored: dict[int, str] = {}
        self.keys: dict[str, dict[str, Any]] = {}

    async def post(self, client: Client, first: int, values: list[str]) -> httpx.Response:
        headers = {"producer-id": client.name}
        records: list[dict[str, Any]] = [{"value": value} for value in values]
        if client.strict:
            headers["producer-seq"] = str(first)
        else:
            for number, record in enumerate(records, first):
                record["publishing_id"] = number
        return await self.harness.client.post(ROUTE, json={"records": records}, headers=headers)

    def note(self, first_offset: int, values: list[str]) -> None:
        for offset, value in enumerate(values, first_offset):
            assert offset not in self.stored
            self.stored[offset] = value

    async def append(self, client: Client, count: int) -> None:
        """The next numbers, sent until it is known that they are stored."""
        first = client.next_number
        values = client.values(first, count)
        for _ in range(3):
            answer = await self.post(client, first, values)
            if answer.status_code == 200:
                break
            assert answer.json()["code"] in {"storage-full", "storage-failed"}, answer.text
        body = answer.json()
        assert body["count"] + body["duplicates"] == count
        assert body["first_offset"] is not None or not client.strict
        if body["first_offset"] is not None:
            self.note(body["first_offset"], values[-body["count"] or 0 :])
            client.sent.append((first, values, body["first_offset"]))

    async def repeat(self, client: Client, back: int) -> None:
        if back > len(client.sent):
            return
        first, values, offset = client.sent[-back]
        answer = (await self.post(client, first, values)).json()
        assert (answer["count"], answer["duplicates"]) == (0, len(values))
        remembered = client.strict and back <= REMEMBERED
        assert answer["first_offset"] == (offset if remembered else None)

    async def gap(self, client: Client, ahead: int) -> None:
        first = client.next_number + ahead
        values = client.values(first, 1, "gap")
        if not client.strict:
            answer = (await self.post(client, first, values)).json()
            self.note(answer["first_offset"], values)
            client.sent.append((first, values, answer["first_offset"]))
            return
        answer = (await self.post(client, first, values)).json()
        assert answer["code"] == ("producer-sequence-gap" if client.sent else "producer-unknown")

    async def overlap(self, client: Client, count: int) -> None:
        if not client.sent or not client.strict:
            return
        first = client.sent[-1][0]
        answer = (await self.post(client, first, client.values(first, count, "other"))).json()
        assert answer["code"] == "producer-sequence-overlap"
        assert answer["last_seq"] == client.next_number - 1

    async def together(self, count: int) -> None:
        """Every producer at once, each append twice."""
        asked = []
        for client in self.clients:
            first = client.next_number
            asked += [(client, first, client.values(first, count))] * 2
        answers = await asyncio.gather(*(self.post(*one) for one in asked))
        for (client, first, values), answer in zip(asked, answers, strict=True):
            assert answer.status_code == 200, answer.text
            if answer.json()["count"]:
                self.note(answer.json()["first_offset"], values)
                client.sent.append((first, values, answer.json()["first_offset"]))

    async def keyed(self, key: str) -> None:
        value = f"key:{key}"
        answer = await self.harness.client.post(
            ROUTE, json={"records": [{"value": value}]}, headers={"idempotency-key": key}
        )
        if key not in self.keys:
            self.keys[key] = answer.json()
            self.note(answer.json()["first_offset"], [value])
        assert answer.json() == self.keys[key]


class OwnedModel(ProducerModel[IngestHarness]):
    """The producers of a stream that one node owns, which fails, crashes and frees its log."""

    def __init__(self, harness: IngestHarness) -> None:
        super().__init__(harness)
        self.harnesses = [harness]

    def fault(self, call: str) -> None:
        fault = no_space() if call == "pwritev" else broken_disk()
        self.harness.files.faults[call] = [fault]

    async def crash(self) -> None:
        after = self.harness.after_crash()
        after.files.faults.clear()
        self.harness = await after.start()
        self.harnesses.append(self.harness)

    async def free(self) -> None:
        if not self.stored:
            return
        harness = self.harness
        harness.files.faults.clear()
        await harness.published(harness.appender.log.committed_next)
        await harness.advance(5_000)
        harness.appender.tick()
        freeing = harness.appender._freeing
        await eventually(lambda: freeing._next_to_free() is None and not freeing._removing)

    async def check(self) -> None:
        assert sorted(self.stored) == list(range(len(self.stored)))
        if not self.stored:
            return
        assert (await self.harness.chunks(len(self.stored))).status_code == 200
        log = self.harness.appender.log
        assert log.committed_next == len(self.stored)
        for row in await self.harness.rows(log.first_offset):
            assert row["value"].decode() == self.stored[row["offset"]]
        for client in self.clients:
            mine = [value for _, values, _ in client.sent for value in values]
            assert len(mine) == len(set(mine))
            in_order = [v for _, v in sorted(self.stored.items()) if v.startswith(client.name)]
            assert in_order == mine


which, small = st.integers(0, 2), st.integers(1, 4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), which, small),
        st.tuples(st.just("append"), which, small),
        st.tuples(st.just("repeat"), which, st.integers(1, 7)),
        st.tuples(st.just("gap"), which, small),
        st.tuples(st.just("overlap"), which, small),
        st.tuples(st.just("together"), small),
        st.tuples(st.just("keyed"), st.sampled_from("xyz")),
        st.tuples(st.just("fault"), st.sampled_from(["pwritev", "fdatasync"])),
        st.tuples(st.just("crash")),
        st.tuples(st.just("free")),
    ),
    min_size=5,
    max_size=30,
)


async def play(directory: Path, played: list[tuple[Any, ...]]) -> None:
    model = OwnedModel(await (await IngestHarness(directory / "i", **SMALL).declare()).start())
    try:
        for name, *arguments in played:
            if name in {"append", "repeat", "gap", "overlap"}:
                arguments[0] = model.clients[arguments[0]]
            if name not in {"append", "fault"}:
                # Only who retries copes with a fault; the others show what is known.
                model.harness.files.faults.clear()
            done = getattr(model, name)(*arguments)
            if done is not None:
                await done
        model.harness.files.faults.clear()
        await model.check()
        await model.crash()
        for client in model.clients:
            await model.repeat(client, 1)
        await model.check()
    finally:
        for harness in model.harnesses:
            await harness.aclose()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(steps)
def test_every_record_is_stored_once_whatever_happens_in_between(
    played: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory), played))
