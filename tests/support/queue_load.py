"""Publishers and workers of queues over HTTP, in threads, while services are killed under them.

Each answer is held against the account (queue_account.py) as it comes. What has no answer, or one that
says that it is not now, is asked again: a publish under its key, anything else once more.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx

from support.queue_account import QueueAccount, in_queue, left_as
from support.waiting import until

AWAY_SECONDS: Final = 0.2
"""After an answer that says that it is not now, or none."""
COUNTS: Final = (1, 1, 3, 10)
NOT_NOW: Final = {429, 503, 504}
WORK_SECONDS: Final = 0.2
_WAIT_MS: Final = (0, 300, 1_000)
_FATES: Final = ("ack", "nack", "reject", "forget")
_FATE_WEIGHTS: Final = (14, 2, 2, 1)
_LIMITS: Final = (1, 5, 20)
_LIMIT_MAX: Final = 100
_PAGE_COUNT: Final = 1_000

Way = Callable[[], httpx.Client]
Refused = Callable[[httpx.Response], bool]


def is_not_now(answer: httpx.Response) -> bool:
    """Whether a refusal is one for now.

    Raises:
        AssertionError: it is not.
    """
    assert answer.status_code in NOT_NOW, answer.text
    return True


@dataclass
class QueueLoad:
    """What clients do with the queues of a deployment, and what they were told."""

    account: QueueAccount
    refused: Refused = is_not_now
    """Hears of every refusal; where it says no nothing is asked again."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Nothing new is published from then on."""
    finishing: threading.Event = field(default_factory=threading.Event)
    """Nobody waits any more for an answer that did not come."""
    pause_seconds: float = 0.1
    """Between two requests of a client, at most."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, client: httpx.Client) -> None:
        """Make all queues, those first that are named by others."""
        for queue in reversed(self.account.queues.values()):
            client.put(f"/v1/queues/{queue.name}", json=queue.plan.config()).raise_for_status()

    @contextmanager
    def running(
        self, works: Sequence[Callable[[random.Random], None]], seed: object
    ) -> Iterator[None]:
        """Have all of this done in threads, until the end of the block; `faults` has what they raised."""
        threads = [
            threading.Thread(target=self._guarded, args=(work, random.Random(f"{seed} {number}")))
            for number, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def _guarded(self, work: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            work(chance)
        except Exception as error:  # noqa: BLE001 whoever falls over must be heard of
            self.faults.append(repr(error))
            self.stopping.set()

    def publish(
        self, way: Way, chance: random.Random, name: str, queues: Sequence[str], *, keyed: bool
    ) -> None:
        """Publish until the stop, with keys that let repeats be known, or each once."""
        number = 0
        while not self.stopping.is_set():
            messages = []
            for _ in range(chance.choice(COUNTS)):
                value = f"{name} {number} " + "x" * int(6_000 * chance.random() ** 4)
                message: dict[str, Any] = {"value": value, "headers": {"name": value[:20]}}
                if chance.random() < 0.2:
                    message["priority"] = chance.randint(1, 9)
                number += 1
                messages.append(message)
            self._publish(way, f"{name}-{number}" if keyed else None, messages, queues)
            self.stopping.wait(chance.uniform(0, self.pause_seconds))

    def _publish(
        self, way: Way, key: str | None, messages: list[dict[str, Any]], queues: Sequence[str]
    ) -> None:
        values = [one["value"] for one in messages]
        of = [self.account.queues[name] for name in queues]
        with self.lock:
            self.account.sent.update(zip(values, messages, strict=True))
            for one in of:
                one.asked.update(values)
        path, body = f"/v1/queues/{queues[0]}/messages", dict[str, Any](messages=messages)
        if len(queues) > 1:
            path, body["queues"] = "/v1/publish", list(queues)
        headers = {} if key is None else {"idempotency-key": key}
        while not self.finishing.is_set():
            answer = self._ask(way, path, body, headers)
            if answer is not None and answer.status_code == httpx.codes.OK:
                told = answer.json()
                with self.lock:
                    for one, stored in zip(of, told.get("queues", [told]), strict=True):
                        one.store(stored, values)
                    self.counts["stored"] += len(values) * len(of)
                    self.counts["replayed"] += "idempotent-replayed" in answer.headers
                return
            if key is None:
                if answer is not None and answer.json()["outcome"] == "none":
                    with self.lock:
                        for one in of:
                            one.refuse(values)
                return
            self.counts["repeated"] += 1

    def work(self, way: Way, chance: random.Random, queue: str) -> None:
        """Receive and settle until the stop, as somebody may who gets tired of it."""
        while not self.stopping.is_set():
            self.work_once(way, chance, queue)
            self.stopping.wait(chance.uniform(0, self.pause_seconds))

    def work_once(self, way: Way, chance: random.Random, queue: str, *, calm: bool = False) -> None:
        """Receive once; who is calm takes and acknowledges what is there."""
        asked = {"limit": chance.choice(_LIMITS), "max_wait_ms": chance.choice(_WAIT_MS)}
        if calm:
            asked = {"limit": _LIMIT_MAX, "max_wait_ms": 0}
        told = self._told(way, f"/v1/queues/{queue}/receive", asked)
        if told is None or not told["messages"]:
            return
        expected = self.account.queues[queue]
        fates: dict[str, list[Any]] = {fate: [] for fate in _FATES}
        with self.lock:
            for message in told["messages"]:
                expected.deliver(message)
                self.counts["delivered"] += 1
                fate = "ack" if calm else chance.choices(_FATES, _FATE_WEIGHTS)[0]
                if fate == "reject" and not expected.plan.has_dead_letters:
                    fate = "nack"
                fates[fate].append(message)
            for message in fates["ack"]:
                expected.ask_for_ack(message)
            for message in fates["reject"]:
                expected.ask_to_reject(message)
        if fates["nack"]:
            self._told(way, f"/v1/queues/{queue}/nack", _naming(fates["nack"]))
        if fates["reject"]:
            body = {**_naming(fates["reject"]), "dead_letter": True}
            self._told(way, f"/v1/queues/{queue}/nack", body)
        if fates["ack"]:
            self._ack(way, queue, fates["ack"])

    def _ack(self, way: Way, queue: str, messages: Sequence[Mapping[str, Any]]) -> None:
        told = self._told(way, f"/v1/queues/{queue}/ack", _naming(messages))
        if told is None:
            return
        late = {*told["gone"], *told["stale"]}
        good = [one for one in messages if one["receipt"] not in late]
        assert told["acked"] == len(good), told
        with self.lock:
            for message in good:
                self.account.queues[queue].acked(message)
            self.counts["acked"] += len(good)

    def _told(self, way: Way, path: str, body: Any) -> dict[str, Any] | None:
        answer = self._ask(way, path, body, {})
        if answer is None or answer.status_code != httpx.codes.OK:
            return None
        told: dict[str, Any] = answer.json()
        return told

    def _ask(
        self, way: Way, path: str, body: Any, headers: Mapping[str, str]
    ) -> httpx.Response | None:
        try:
            answer = way().post(path, json=body, headers=headers)
        except httpx.TransportError:
            self.counts["unknown"] += 1
            self.finishing.wait(AWAY_SECONDS)
            return None
        assert answer.headers.get("content-type", "").endswith("json"), answer.text[:500]
        if answer.status_code != httpx.codes.OK:
            self.counts["refused"] += 1
            assert self.refused(answer), answer.text
            self.finishing.wait(AWAY_SECONDS)
        return answer

    def work_off(self, way: Way, chance: random.Random) -> None:
        """Acknowledge all that is left, until nothing is in any queue nor on its way.

        Raises:
            AssertionError: for long it has not become less.
        """

        def work() -> int:
            """What is left after some of it."""
            for name in self.account.queues:
                self.work_once(way, chance, name, calm=True)
            there = [in_queue(self._described(way, name)) for name in self.account.queues]
            return sum(count for one in there for count in one.values())

        def work_to_less_than(least: int) -> tuple[int] | None:
            now = work()
            return (now,) if now < least else None

        left = work()
        while left:
            less = partial(work_to_less_than, left)
            (left,) = until(less, what=f"less than {left} messages in queues and on their way")

    def _described(self, way: Way, name: str) -> dict[str, Any]:
        told: dict[str, Any] = until(
            lambda: _good(way().get(f"/v1/queues/{name}")), what=f"a description of {name}"
        )
        with self.lock:
            self.account.queues[name].describe(told)
        return told

    def check(self, way: Way, letters: str, archive: str | None = None) -> None:
        """How did each message end? Everything is worked off; these streams have what left for them.

        Raises:
            AssertionError: something is lost, there twice, or not as somebody was told.
        """
        dead = [left_as(one) for one in all_records(way, letters)]
        kept = [] if archive is None else [left_as(one) for one in all_records(way, archive)]
        for what in (dead, kept):
            values = [one.value for one in what]
            assert len(set(values)) == len(values), "a message is twice in its target"
        for name, queue in self.account.queues.items():
            if queue.plan.has_dead_letters:
                self.account.check_ends(name, self._described(way, name)["totals"], dead, kept)
        self.counts["letters"] += len(dead)
        self.counts["archived"] += len(kept)


def all_records(way: Way, stream: str) -> list[dict[str, Any]]:
    """All records of a stream, from its first one."""
    found: list[dict[str, Any]] = []
    while True:
        asked = {"offset": str(len(found)), "limit": _PAGE_COUNT, "on_out_of_range": "error"}
        path = f"/v1/streams/{stream}/records"
        page = until(
            lambda path=path, asked=asked: _good(way().get(path, params=asked)),  # type: ignore[misc]
            what=f"a page of {stream}",
        )
        found += page["records"]
        if page["up_to_date"]:
            return found


def _good(answer: httpx.Response) -> dict[str, Any] | None:
    body: dict[str, Any] = answer.json()
    return body if answer.is_success else None


def _naming(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"receipts": [one["receipt"] for one in messages]}
