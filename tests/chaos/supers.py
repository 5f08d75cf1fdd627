"""A super stream under the same troubles: requests of producers over several partitions.

A producer numbers its requests and sends each again, as it was, until it is told that it is whole.
So each of its numbers is in one partition, once, and in each partition they stand in their order.

It grows meanwhile, at moments that nobody chose. The records of a key then go on in another partition,
and from partition to partition in the order of the layouts.
"""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import httpx
from support.numbered_records import record, split, value_of

from bottomless.model.routing import hash_keys, keys_of
from chaos.ledger import Ledger
from chaos.load import AWAY_SECONDS, COUNTS, PATIENCE_SECONDS, Load, ways_of

KEY_COUNT: Final = 16
GROWS_AFTER_SECONDS: Final = (1.0, 12.0)
GROWS_AGAIN_SECONDS: Final = 1.0
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

    def __init__(
        self, name: str, partition_count: int, producers: Sequence[int], growths: int = 0
    ) -> None:
        """With each of its `growths` it gets one more partition."""
        self.name = name
        self.path = f"/v1/super-streams/{name}"
        self.producers = tuple(producers)
        self.growths = growths
        count_max = partition_count + growths
        self.places = [PartLedger(f"{name}-{number}", self) for number in range(count_max)]
        """The partitions that there are, and those that it is to get: a growth of which nobody was
        told yet may have happened."""
        self.layouts = [partition_count]
        """How many partitions there were, one layout after the other."""
        self.may_grow = threading.Event()
        """Set while a growth is begun, or is sure to come."""
        if growths:
            self.may_grow.set()
        self.sent = Counter[int]()
        """By producer: numbers below it were sent at least once."""
        self.counts = Counter[str]()
        self._seen: set[int] = set()
        self._lock = threading.Lock()

    @property
    def parts(self) -> list[PartLedger]:
        """The partitions that there are, as far as somebody was told."""
        return self.places[: self.layouts[-1]]

    @property
    def is_written(self) -> bool:
        """Whether it does not grow any more, and each partition has records."""
        return not self.may_grow.is_set() and all(part.acknowledged for part in self.parts)

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
        by_name = {part.name: part for part in self.places}
        indexes = sorted(n for one in told["results"] for n in one["record_indexes"])
        if indexes != list(range(len(codes))):
            self.places[0].fault(f"{len(codes)} records were sent, and {indexes} were answered")
            return
        for one in told["results"]:
            if one["status"] == httpx.codes.OK and one["first_offset"] is not None:
                mine = [codes[n] for n in one["record_indexes"]]
                by_name[one["stream"]].note_acknowledged(one["first_offset"], mine)

    def take_partitions(self, told: dict[str, Any]) -> list[PartLedger]:
        """Take up which partitions there are; those that are new."""
        before = len(self.parts)
        for part, one in zip(self.places, told["partitions"], strict=False):
            part.stream_id = one["stream_id"]
        if told["partition_count"] > before:
            self.layouts.append(told["partition_count"])
        return self.parts[before:]

    def check(self) -> list[str]:
        """What is missing or in the wrong place, in words, when followers have seen all of it."""
        wrong = []
        for producer in self.producers:
            numbers = {split(code)[1] for code in self._seen if split(code)[0] == producer}
            missing = set(range(self.sent[producer])) - numbers
            if missing:
                wrong.append(f"{self.name}: {producer} {min(missing)} is missing in all partitions")
        return wrong + self._check_layouts()

    def _check_layouts(self) -> list[str]:
        """Whether the records of each producer and key went from partition to partition in the order
        of the layouts. That those of one partition stand in their order was seen as they came."""
        by_key: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for index, part in enumerate(self.parts):
            for producer, number in map(split, part.seen):
                by_key.setdefault((producer, key_of(number)), []).append((number, index))
        wrong = []
        for (producer, key), places in by_key.items():
            routes = [route(key, count) for count in self.layouts]
            for number, index in sorted(places):
                if index not in routes:
                    wrong.append(f"{self.name}: {producer} {number} is in {index}, not in {routes}")
                    break
                # What came before it went by this layout, or by an earlier one.
                routes = routes[routes.index(index) :]
        return wrong


def key_of(number: int) -> str:
    """The key of a producer's record of this number."""
    return f"key {number % KEY_COUNT}"


def route(key: str, count: int) -> int:
    """The partition of a key among so many."""
    [number] = hash_keys(keys_of([key.encode()])).tolist()
    return int(number) % count


class Grower:
    """Gives a super stream more partitions, once or twice, whatever happens."""

    def __init__(self, ledger: SuperLedger) -> None:
        self._ledger = ledger

    def work(self, load: Load, chance: random.Random) -> None:
        ledger = self._ledger
        with ways_of(load.deployment) as ways:
            for growth in range(ledger.growths):
                load.stopping.wait(chance.uniform(*GROWS_AFTER_SECONDS) * (1 + growth))
                if growth and load.stopping.is_set():
                    break
                ledger.may_grow.set()
                for part in self._grow(load, ways[:2], chance):
                    load.take_up(part)
                ledger.note("growths")
                ledger.may_grow.clear()
        ledger.may_grow.clear()

    def _grow(
        self, load: Load, ways: list[httpx.Client], chance: random.Random
    ) -> list[PartLedger]:
        """Ask for one partition more until it is there; the new ones."""
        count = len(self._ledger.parts) + 1
        body = {"partitions": count, "accept_rehash": True}
        while not load.finishing.is_set() and not load.has_faults:
            client = chance.choice(ways)
            asked = self._ask(load, client, "PATCH", json=body, headers={"if-match": "*"})
            told = self._ask(load, client, "GET") if asked is None else asked
            # A 202 has another state, and no partitions.
            if told is not None and (told["state"], told.get("partition_count")) == (
                "active",
                count,
            ):
                return self._ledger.take_partitions(told)
            load.finishing.wait(GROWS_AGAIN_SECONDS)
        return []

    def _ask(
        self, load: Load, client: httpx.Client, method: str, **given: Any
    ) -> dict[str, Any] | None:
        try:
            answer = client.request(method, self._ledger.path, timeout=30, **given)
        except httpx.TransportError:
            self._ledger.note("growths of unknown outcome")
            return None
        if answer.is_success:
            told: dict[str, Any] = answer.json()
            return told
        load.is_refusal(self._ledger.places[0], answer)
        return None


class SuperProducer:
    """Numbers its requests, and sends each until it is whole."""

    def __init__(self, ledger: SuperLedger, who: int) -> None:
        self._ledger = ledger
        self._who = who

    def work(self, load: Load, chance: random.Random) -> None:
        number = 0
        with ways_of(load.deployment) as ways:
            while not load.has_faults and not load.finishing.is_set():
                # Each partition is to have records, also one that it got in the last moment.
                if load.stopping.is_set() and self._ledger.is_written:
                    return
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
        records = [{"value": value_of(code), "key": key_of(split(code)[1])} for code in codes]
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
            return load.is_refusal(self._ledger.places[0], answer)
        self._ledger.note("stored in part")
        final = [
            one["problem"] for one in answer.json()["results"] if one["status"] in range(400, 500)
        ]
        for problem in final:
            if problem["status"] != httpx.codes.TOO_MANY_REQUESTS:
                self._ledger.places[0].fault(f"a part was refused for good: {problem}")
                return False
        return True
