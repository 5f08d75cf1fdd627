"""Clients of answers that stay open, who stall, and go on from what they were told."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import orjson

from simulation.clients import LATER, Reader
from simulation.expected import Broken
from simulation.network import NoAnswer, NoConnection, Request
from simulation.open_answers import OpenExchange, opened

_STALL_SECONDS_MAX = 4.0
"""Above what the service waits for a client, with all the time that it has after that."""

_Told = list[tuple[list[dict[str, Any]], dict[str, Any]]]
"""Records, and what was said with them."""


@dataclass
class Follower(Reader):
    """Follows as events or as lines, and at any piece stops taking for a while.

    Whatever ends an answer, it goes on from the last `next_offset` that it was told, as
    docs/reading.md says; a record that is left out so is one that it was never shown.
    """

    async def run(self) -> None:
        while not self.services.closing and not self.expected.deleted:
            if self.chance.random() < 0.2:
                self.position = self.expected.somewhere(self.chance, self.position)
            try:
                await self._one_answer()
            except (NoConnection, NoAnswer, TimeoutError):
                self.services.story.count("followed answers broken off")
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def _one_answer(self) -> None:
        accept = self.chance.choice((b"application/x-ndjson", b"text/event-stream"))
        size = self.chance.choice((500, 2_000, 8_000))
        query = f"offset={self.position}&follow=true&on_out_of_range=error&max_bytes={size}"
        path = f"/v1/streams/{self.expected.name}/records"
        request = Request("GET", path, query.encode(), [(b"accept", accept)])
        network, url = self.services.network, self.services.reader.public_url
        async with opened(network, "client", url, request) as answer:
            told = _events(accept == b"text/event-stream")
            next(told)
            # An answer that stays open ends for a client that wants something else by now.
            async with asyncio.timeout(self.chance.uniform(2, 12)):
                while data := await answer.piece():
                    if answer.status != 200:
                        await self._refused(answer, data)
                        return
                    for records, said in told.send(data):
                        self._hear(records, said)
                    if self.chance.random() < 0.05:
                        self.services.story.count("followers stalled")
                        await asyncio.sleep(self.chance.uniform(0.1, _STALL_SECONDS_MAX))

    def _hear(self, records: list[dict[str, Any]], said: dict[str, Any]) -> None:
        if "end" not in said and "reason" not in said:
            if "time" not in said:
                self.take({**said, "records": records}, self.position)
            return
        reason = said.get("end", said.get("reason"))
        self.services.story.count(f"followed answers ended: {reason}")
        if said["next_offset"] != self.position:
            raise Broken(
                f"{self.expected.name}: what was sent ends at {self.position}, and the end "
                f"({reason}) says to go on at {said['next_offset']}"
            )
        if reason == "error" and said["code"] in ("internal", "data-corrupt", "data-missing"):
            raise Broken(f"{self.expected.name} at {self.position}: {said}")

    async def _refused(self, answer: OpenExchange, data: bytes) -> None:
        while piece := await answer.piece():
            data += piece
        told = orjson.loads(data)
        if answer.status == 410:
            self.skip(told)
        elif answer.status not in {*LATER, 404, 416}:
            raise Broken(f"{self.expected.name} at {self.position}: {answer.status} {told}")


def _events(as_events: bool) -> Generator[_Told, bytes, None]:
    """Takes pieces of an answer by `send`, and gives what is whole: records, and what is said."""
    held = b""
    records: list[dict[str, Any]] = []
    found: _Told = []
    while True:
        held += yield found
        found = []
        *lines, held = held.split(b"\n")
        for line in lines:
            if as_events:
                if line.startswith(b"data: "):
                    value = orjson.loads(line[6:])
                    found.append((value.pop("records", []), value))
                continue
            value = orjson.loads(line)
            if "_control" in value:
                found.append((records, value["_control"]))
                records = []
            else:
                records.append(value)
