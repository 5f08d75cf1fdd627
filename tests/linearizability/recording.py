"""Clients that work on one stream at once, over sockets that break, and write down what they saw."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import httpx
from support.waiting import until

from linearizability.history import (
    UNKNOWN,
    Append,
    Bounds,
    Commit,
    End,
    Event,
    Mismatch,
    Operation,
    Page,
    Read,
    Result,
    Stored,
)

ANSWER_SECONDS: Final = 3
"""After so long a client takes the answer for lost."""
DEADLINE_SECONDS: Final = 240


class NoAnswer(Exception):
    """Nobody knows what became of the request."""


class NothingHappened(Exception):
    """The server said so."""


@dataclass
class Recording:
    """One stream, who works on it, and what they saw."""

    stream: str
    url: str
    """By which most clients come."""
    strict_url: str
    """By which those come that repeat an append until it is answered."""
    direct_url: str
    """Where nothing gets lost."""
    seed: int
    events: list[Event] = field(default_factory=list)
    replayed_count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    @property
    def size(self) -> int:
        with self._lock:
            return len(self.events)


class Client:
    """One thread's worth of requests, one after the other."""

    def __init__(self, recording: Recording, name: str, url: str) -> None:
        self._recording = recording
        self._name = name
        self._chance = random.Random(f"{recording.seed} {recording.stream} {name}")
        # Where nothing gets lost, an answer that takes long comes, and is wanted.
        is_direct = url == recording.direct_url
        self._http = httpx.Client(
            base_url=url, timeout=DEADLINE_SECONDS if is_direct else ANSWER_SECONDS
        )
        self._records = f"/v1/streams/{recording.stream}/records"
        self._numbers = count()
        self._sequence = 0
        self._end = 0

    def close(self) -> None:
        self._http.close()

    def work(self, operation_count: int) -> None:
        """Appends, conditional ones, pages and bounds, in an order made up from the seed."""
        for _ in range(operation_count):
            match self._chance.randrange(6):
                case 0 | 1:
                    self._do(Append(self._values()), self._append)
                case 2:
                    # Others do the same, and are about as often first as not.
                    self._do(Bounds(), self._bounds)
                    self._do(Append(self._values(), self._end), self._append)
                case 3 | 4:
                    self._do(Read(self._chance.randint(0, self._end)), self._read)
                case _:
                    self._do(Bounds(), self._bounds)

    def work_strictly(self, operation_count: int) -> None:
        """Numbered appends, each repeated until it is answered, and looks between them."""
        for number in range(operation_count):
            if number % 3 == 2:
                self._do(Read(self._chance.randint(0, self._end)), self._read)
            else:
                self._do(Append(self._values()), self._append_strictly)

    def conclude(self) -> None:
        """One condition that holds and one that does not, then everything to its end.

        Asked when nobody else appends any more, and until it is answered: a node that was killed or has
        slept may have no lease for a while.
        """
        until(lambda: self._do(Bounds(), self._bounds), what="the end")
        until(
            lambda: self._do(Append(self._values(), self._end), self._append),
            what="an append at the end",
        )
        until(
            lambda: self._do(Append(self._values(), self._end - 1), self._append),
            what="an append before the end",
        )
        until(lambda: self._do(Read(0), self._read_all), what="all pages")

    def _do(self, operation: Operation, ask: Callable[[Any], Result]) -> bool:
        """Write down what came of an operation; returns whether it was answered."""
        invoked = time.monotonic()
        try:
            result = ask(operation)
        except NothingHappened:
            return False
        except NoAnswer:
            self._wait_alive()
            if isinstance(operation, Append | Commit):
                self._recording.add(Event(self._name, operation, UNKNOWN, invoked))
            return False
        returned = time.monotonic()
        self._recording.add(Event(self._name, operation, result, invoked, returned))
        return True

    def _values(self) -> tuple[str, ...]:
        number = next(self._numbers)
        each = range(self._chance.randint(1, 3))
        return tuple(f"{self._name}-{number}-{place}" for place in each)

    def _append(self, operation: Append, **headers: str) -> Result:
        if operation.expected_offset is not None:
            headers["Stream-Expected-Offset"] = str(operation.expected_offset)
        answer = self._ask(
            "POST",
            self._records,
            json={"records": [{"value": value} for value in operation.values]},
            headers=headers,
        )
        body = answer.json()
        if answer.status_code == 412:
            self._end = max(self._end, body["next_offset"])
            return Mismatch(body["next_offset"])
        assert answer.status_code == 200, body
        if answer.headers.get("idempotent-replayed"):
            self._recording.replayed_count += 1
        self._end = max(self._end, body["next_offset"])
        return Stored(body["first_offset"])

    def _append_strictly(self, operation: Append) -> Result:
        sequence, self._sequence = self._sequence, self._sequence + len(operation.values)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            assert time.monotonic() < deadline, "an append was never answered"
            try:
                return self._append(
                    operation,
                    **{"Producer-Id": self._name, "Producer-Seq": str(sequence)},
                )
            except (NoAnswer, NothingHappened):
                self._wait_alive()

    def _read(self, operation: Read, limit: int | None = None) -> Result:
        parameters = {
            "offset": operation.offset,
            "limit": limit or self._chance.randint(1, 20),
            "on_out_of_range": "error",
        }
        answer = self._ask("GET", self._records, params=parameters)
        body = answer.json()
        assert answer.status_code == 200, body
        values = tuple(record["value"] for record in body["records"])
        assert body["next_offset"] == operation.offset + len(values)
        assert body["up_to_date"] or values, "a page of nothing, and more to come"
        return Page(values, body["up_to_date"])

    def _read_all(self, operation: Read) -> Result:
        """Pages up to the end are as one: what lies before an offset that was read stays as it is, so
        all of it was there at the moment of the last page."""
        values: tuple[str, ...] = ()
        while True:
            page = self._read(Read(operation.offset + len(values)), 10_000)
            assert isinstance(page, Page)
            values += page.values
            if page.up_to_date:
                return Page(values, up_to_date=True)

    def _bounds(self, _: Bounds) -> Result:
        answer = self._ask("GET", f"/v1/streams/{self._recording.stream}/offsets")
        assert answer.status_code == 200, answer.text
        self._end = max(self._end, answer.json()["next_offset"])
        return End(answer.json()["next_offset"])

    def _ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **how)
        except httpx.TransportError:
            raise NoAnswer from None
        if answer.status_code in (503, 504):
            problem = answer.json()
            raise NothingHappened if problem.get("outcome") == "none" else NoAnswer
        return answer

    def _wait_alive(self) -> None:
        def alive() -> bool:
            try:
                return self._http.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(alive, DEADLINE_SECONDS, "the server to be back")


def record(
    recording: Recording,
    operation_count: int,
    meanwhile: Callable[[], None] | None = None,
    *,
    strictly: bool = True,
) -> None:
    """Let five clients work, two of them strictly or like the others; in the end look at everything."""
    with ExitStack() as closing:

        def a_client(name: str, url: str) -> Client:
            client = Client(recording, name, url)
            closing.callback(client.close)
            return client

        clients = [a_client(f"c{number}", recording.url) for number in range(3)]
        others = [a_client(f"s{number}", recording.strict_url) for number in range(2)]
        with ThreadPoolExecutor(len(clients) + len(others)) as threads:
            working = [threads.submit(client.work, operation_count) for client in clients]
            working += [
                threads.submit(client.work_strictly if strictly else client.work, operation_count)
                for client in others
            ]
            if meanwhile is not None:
                meanwhile()
            for each in working:
                each.result()
        a_client("last", recording.direct_url).conclude()
