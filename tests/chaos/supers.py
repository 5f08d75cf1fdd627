"""A super stream under the same troubles: requests of producers over several partitions.

A producer numbers its requests and sends each again, as it was, until it is told that it is whole.
So each of its numbers is in one partition, once, and in each partition they stand in their order.
"""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import httpx
from support.numbered_records import record, split, value_of

from chaos.ledger import Ledger
from chaos.load import AWAY_SECONDS, COUNTS, PATIENCE_SECONDS, Load, ways_of

KEY_COUNT: Final = 16
PAUSES: Final = 5
"""So many times as long as others it waits: each of its requests is many, and threads cost."""
_LEAST_COUNT: Final = 4
"""Records of a request, of which mostly each partition has some."""


class PartLedger(Ledger):
    """Of one partition."""

    def __init__(self, name: str, whole: "SuperLedger") -> None:
        super().__init__(name, (), ())
        self._whole = whole

    def _check_next(self, offset: int, code: int) -> None:
        producer, number = split(code)
        if number < self._next[producer]:
            self._fault(f"{producer} {number} is doubled, or out of order, at offset {offset}")
        if not self._whole.note_seen(code):
            self._fault(f"{producer} {number} at offset {offset} is in another partition too")
        if number >= self._whole.sent[producer]:
            self._fault(f"{producer} {number} at offset {offset} was never sent")
        told = self.acknowledged.get(offset, code)
        if told != code:
            self._fault(f"offset {offset} was acknowledged for {split(told)}, and holds {code}")
        self._next[producer] = number + 1


class SuperLedger:
    """Of a super stream. Every method may be called from any thread."""

    def __init__(self, name: str, partition_count: int, producers: Sequence[int]) -> None:
        self.name = name
        self.path = f"/v1/super-streams/{name}"
        self.producers = tuple(producers)
        self.parts = [PartLedger(f"{name}-{number}", self) for number in range(partition_count)]
        self.sent = Counter[int]()
        """By producer: numbers below it were sent at least once."""
        self.counts = Counter[str]()
        self._seen: set[int] = set()
        self._lock = threading.Lock()

    def note_seen(self, code: int) -> bool:
        """Take up a record that a follower was shown; whether it is the first time."""
        with self._lock:
            new = code not in self._seen
            self._seen.add(code)
            return new

    def note(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def take(self, told: dict[str, Any], codes: Sequence[int]) -> None:
        """Hold what an answer says of the parts that are stored against what is known."""
        by_name = {part.name: part for part in self.parts}
        indexes = sorted(n for one in told["results"] for n in one["record_indexes"])
        if indexes != list(range(len(codes))):
            self.parts[0].fault(f"{len(codes)} records were sent, and {indexes} were answered")
            return
        for one in told["results"]:
            if one["status"] == httpx.codes.OK and one["first_offset"] is not None:
                mine = [codes[n] for n in one["record_indexes"]]
                by_name[one["stream"]].note_acknowledged(one["first_offset"], mine)

    def check(self) -> list[str]:
        """What is missing, in words, when followers have seen all of it."""
        wrong = []
        for producer in self.producers:
            numbers = {split(code)[1] for code in self._seen if split(code)[0] == producer}
            missing = set(range(self.sent[producer])) - numbers
            if missing:
                wrong.append(f"{self.name}: {producer} {min(missing)} is missing in all partitions")
        return wrong


class SuperProducer:
    """Numbers its requests, and sends each until it is whole."""

    def __init__(self, ledger: SuperLedger, who: int) -> None:
        self._ledger = ledger
        self._who = who

    def work(self, load: Load, chance: random.Random) -> None:
        number = 0
        with ways_of(load.deployment) as ways:
            while not load.stopping.is_set() and not load.has_faults:
                count = max(_LEAST_COUNT, chance.choice(COUNTS))
                codes = [record(self._who, number + n) for n in range(count)]
                number += count
                self._ledger.sent[self._who] = number
                self._send_until_whole(load, codes, ways, chance)
                load.stopping.wait(chance.uniform(0, PAUSES * load.pace.producer_seconds))

    def _send_until_whole(
        self, load: Load, codes: list[int], ways: list[httpx.Client], chance: random.Random
    ) -> None:
        _, number = split(codes[0])
        headers = {"producer-id": f"p{self._who}", "producer-seq": str(number)}
        records = [
            {"value": value_of(code), "key": f"key {split(code)[1] % KEY_COUNT}"} for code in codes
        ]
        while not load.finishing.is_set():
            seconds = chance.choices(PATIENCE_SECONDS, (1, 6, 6, 20))[0]
            try:
                answer = chance.choice(ways).post(
                    f"{self._ledger.path}/records",
                    json={"records": records},
                    headers=headers,
                    timeout=httpx.Timeout(10, read=seconds),
                )
            except httpx.TransportError:
                self._ledger.note("unknown")
            else:
                if answer.status_code in (httpx.codes.OK, httpx.codes.MULTI_STATUS):
                    self._ledger.take(answer.json(), codes)
                if answer.status_code == httpx.codes.OK:
                    replayed = answer.headers.get("idempotent-replayed")
                    self._ledger.note("replayed" if replayed else "stored")
                    return
                if not self._may_be_repeated(load, answer):
                    return
            load.finishing.wait(AWAY_SECONDS)

    def _may_be_repeated(self, load: Load, answer: httpx.Response) -> bool:
        if answer.status_code != httpx.codes.MULTI_STATUS:
            self._ledger.note("refused")
            return load.is_refusal(self._ledger.parts[0], answer)
        self._ledger.note("stored in part")
        final = [
            one["problem"] for one in answer.json()["results"] if one["status"] in range(400, 500)
        ]
        for problem in final:
            if problem["status"] != httpx.codes.TOO_MANY_REQUESTS:
                self._ledger.parts[0].fault(f"a part was refused for good: {problem}")
                return False
        return True
