"""Who appends and who reads while everything is killed, and never gives up.

A strict producer numbers its records and sends an append again until it knows the outcome, by
any of the ways there are and perhaps while an earlier attempt is still under way. A plain one
sends everything once, now and then only for the offset where it believes the end to be. A follower reads a stream from its first record to its end all the time;
somebody else reads anywhere. What they are shown is checked as it comes.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
from support.numbered_records import record, split, value_of

from chaos.deployment import ChaosDeployment
from chaos.ledger import Ledger, Mode

AWAY_SECONDS: Final = 0.2
"""After an answer that says that it is not now, or none."""
PATIENCE_SECONDS: Final = (0.02, 1.5, 5.0, 20.0)
"""How long a producer waits for an answer before it sends again; the first is for not at all."""
COUNTS: Final = (1, 1, 2, 10, 40)
AGAIN_COUNT_MAX: Final = 3
"""Records that were acknowledged, and are sent once more before new ones."""
CONDITIONAL_SHARE: Final = 0.2
NOT_NOW: Final = {429, 503, 504}
DAMAGED: Final = 502


@dataclass(frozen=True)
class Pace:
    """How long everybody waits between two requests that were answered, at most."""

    producer_seconds: float = 0.2
    reader_seconds: float = 0.1


class Load:
    """Threads over all ledgers; `stop` returns when every strict producer knows its outcome."""

    def __init__(
        self,
        deployment: ChaosDeployment,
        ledgers: list[Ledger],
        seed: int,
        pace: Pace | None = None,
        others: Sequence["Work"] = (),
    ) -> None:
        """`others` work beside the producers and readers, and end when `stopping` is set."""
        self.deployment = deployment
        self.pace = pace or Pace()
        self.stopping = threading.Event()
        self.finishing = threading.Event()
        self.damage_allowed = threading.Event()
        """Set while bytes from the store may be damaged on their way."""
        self._produced = threading.Event()
        """Nobody appends any more."""
        self._ledgers, self._seed = ledgers, seed
        producing = [
            partial(self._produce, each, who, strict)
            for each in ledgers
            for strict, producers in ((True, each.strict), (False, each.plain))
            for who in producers
        ]
        reading = [*(partial(self._follow, each) for each in ledgers), partial(self._look, ledgers)]
        working = [partial(work, self) for work in others]
        threads = [
            threading.Thread(target=self._guarded, args=(ledgers[0], work, f"{seed} {number}"))
            for number, work in enumerate([*producing, *reading, *working])
        ]
        readers = threads[len(producing) : len(producing) + len(reading)]
        self._producers, self._readers = [one for one in threads if one not in readers], readers

    def take_up(self, ledger: Ledger) -> None:
        """Follow one stream more, which is there since a moment. By one of the others that work."""
        self._ledgers.append(ledger)
        follow = partial(self._follow, ledger)
        seed = f"{self._seed} {ledger.name}"
        thread = threading.Thread(target=self._guarded, args=(ledger, follow, seed))
        self._readers.append(thread)
        thread.start()

    def start(self) -> None:
        for thread in (*self._producers, *self._readers):
            thread.start()

    def stop(self, seconds: float) -> list[str]:
        """Nothing new from now on; returns in words what is not known after so long."""
        self.stopping.set()
        deadline = time.monotonic() + seconds
        unknown = []
        for what, threads in (("producers", self._producers), ("readers", self._readers)):
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0))
            alive = sum(thread.is_alive() for thread in threads)
            if alive:
                unknown.append(f"{alive} {what} were not at their end after {seconds} s")
            self._produced.set()
        self.finishing.set()
        for thread in (*self._producers, *self._readers):
            thread.join()
        return unknown

    @property
    def has_faults(self) -> bool:
        """Whether something was wrong already, so that nobody need go on."""
        return any(each.faults for each in self._ledgers)

    def _guarded(self, ledger: Ledger, work: Any, seed: str) -> None:
        try:
            work(random.Random(seed))
        except Exception as error:  # noqa: BLE001  # whoever falls over must be heard of
            ledger.fault(f"a client fell over: {error!r}")

    def _produce(self, ledger: Ledger, who: int, strict: bool, chance: random.Random) -> None:
        with ways_of(self.deployment) as ways:
            number = 0
            while not self.stopping.is_set() and not ledger.faults:
                codes = [record(who, number + n) for n in range(chance.choice(COUNTS))]
                number += len(codes)
                ledger.sent[who] = number
                if strict:
                    self._send_until_known(ledger, codes, ways, chance)
                else:
                    self._send_once(ledger, codes, ways, chance)
                self.stopping.wait(chance.uniform(0, self.pace.producer_seconds))

    def _send_until_known(
        self, ledger: Ledger, codes: list[int], ways: list[httpx.Client], chance: random.Random
    ) -> None:
        who, number = split(codes[0])
        headers = {"producer-id": f"p{who}"}
        mode = ledger.modes.get(who, Mode.DENSE)
        match mode:
            case Mode.DENSE:
                headers["producer-seq"] = str(number)
            case Mode.TXN:
                headers["txn-number"] = str(number)
            case Mode.HIGHWATER:
                again = min(chance.randint(0, AGAIN_COUNT_MAX), number)
                codes = [*(record(who, number - each) for each in range(again, 0, -1)), *codes]
        numbered = mode is Mode.HIGHWATER
        while not self.finishing.is_set():
            client = chance.choice(ways)
            seconds = chance.choices(PATIENCE_SECONDS, (1, 6, 6, 20))[0]
            try:
                answer = _append(client, ledger, codes, seconds, headers, numbered=numbered)
            except httpx.TransportError:
                ledger.unknown += 1
                self.finishing.wait(AWAY_SECONDS)
                continue
            if answer.status_code == httpx.codes.OK:
                self._take(ledger, answer, codes, numbered=numbered)
                return
            if not self.is_refusal(ledger, answer):
                return
            ledger.unknown += answer.json()["outcome"] != "none"
            self.finishing.wait(AWAY_SECONDS)

    def _take(
        self, ledger: Ledger, answer: httpx.Response, codes: list[int], *, numbered: bool
    ) -> None:
        body = answer.json()
        if body["count"] + body["duplicates"] != len(codes):
            ledger.fault(f"{len(codes)} records were sent, and answered with {body}")
        ledger.replayed += body["duplicates"] > 0
        if numbered:
            # Where those lie that had been stored before is not told.
            codes = codes[body["duplicates"] :]
        if codes:
            ledger.note_acknowledged(body["first_offset"], codes)

    def _send_once(
        self, ledger: Ledger, codes: list[int], ways: list[httpx.Client], chance: random.Random
    ) -> None:
        headers = {}
        if chance.random() < CONDITIONAL_SHARE:
            headers["stream-expected-offset"] = str(len(ledger.seen))
        try:
            answer = _append(chance.choice(ways), ledger, codes, 20, headers)
        except httpx.TransportError:
            ledger.unknown += 1
        else:
            if answer.status_code == httpx.codes.OK:
                first_offset = answer.json()["first_offset"]
                if headers.get("stream-expected-offset", str(first_offset)) != str(first_offset):
                    ledger.fault(f"an append for {headers} alone is stored at {first_offset}")
                ledger.note_acknowledged(first_offset, codes)
                return
            if headers and answer.status_code == httpx.codes.PRECONDITION_FAILED:
                ledger.note_answer("POST offset-mismatch")
                ledger.note_refused(codes)
                return
            if self.is_refusal(ledger, answer) and answer.json()["outcome"] == "none":
                ledger.note_refused(codes)
        self.stopping.wait(AWAY_SECONDS)

    def is_refusal(self, ledger: Ledger, answer: httpx.Response) -> bool:
        """Whether it is an answer that may be given while something is away; else it is a fault."""
        try:
            problem = answer.json()
            words = f"{answer.request.method} {problem['code']} {problem.get('outcome')}"
        except (ValueError, KeyError, TypeError):
            ledger.fault(f"no problem but {answer.status_code} {answer.text[:200]!r}")
            return False
        ledger.note_answer(words)
        damaged = answer.status_code == DAMAGED and self.damage_allowed.is_set()
        if answer.status_code not in NOT_NOW and not damaged:
            ledger.fault(f"{answer.request.method} {answer.request.url.path}: {answer.text}")
            return False
        return True

    def _follow(self, ledger: Ledger, chance: random.Random) -> None:
        """Until the stop, and then to the end of the stream."""
        with ways_of(self.deployment) as ways:
            while not self.finishing.is_set() and not ledger.faults:
                parameters = {
                    "offset": len(ledger.seen),
                    "limit": 1_000,
                    "max_wait_ms": chance.choice((0, 500, 5_000)),
                    "on_out_of_range": "error",
                }
                last = self._produced.is_set()
                page = self._page(ledger, ways[0], parameters)
                if page is not None:
                    ledger.note_followed(_records(page))
                    if last and page["up_to_date"]:
                        return
                self.stopping.wait(chance.uniform(0, self.pace.reader_seconds))

    def _look(self, ledgers: list[Ledger], chance: random.Random) -> None:
        """Read somewhere, again and again: mostly what only the store still has."""
        with ways_of(self.deployment) as ways:
            while not self.stopping.is_set():
                ledger = chance.choice(ledgers)
                offset = chance.randrange(1 + len(ledger.seen))
                parameters = {"offset": offset, "limit": 50, "on_out_of_range": "error"}
                page = self._page(ledger, chance.choice(ways[:2]), parameters)
                if page is not None:
                    ledger.note_looked(offset, _records(page))
                self.stopping.wait(chance.uniform(0, 2 * self.pace.reader_seconds))

    def _page(
        self, ledger: Ledger, client: httpx.Client, parameters: dict[str, Any]
    ) -> dict[str, Any] | None:
        try:
            answer = client.get(f"{ledger.path}/records", params=parameters)
        except httpx.TransportError:
            self.stopping.wait(AWAY_SECONDS)
            return None
        if answer.status_code != httpx.codes.OK:
            self.is_refusal(ledger, answer)
            self.stopping.wait(AWAY_SECONDS)
            return None
        page: dict[str, Any] = answer.json()
        return page


Work = Callable[[Load, random.Random], None]
"""What else may be done beside, in a thread of its own, by chance."""


@contextmanager
def ways_of(deployment: ChaosDeployment) -> Iterator[list[httpx.Client]]:
    """nginx without a link and with one, and the ingest nodes but the first by themselves."""
    with ExitStack() as clients:
        yield [
            clients.enter_context(one)
            for one in (
                deployment.client(),
                deployment.client(direct=False),
                *(
                    httpx.Client(base_url=deployment[name].url, timeout=30)
                    for name in deployment.ingests[1:]
                ),
            )
        ]


def _append(
    client: httpx.Client,
    ledger: Ledger,
    codes: list[int],
    seconds: float,
    headers: dict[str, str],
    *,
    numbered: bool = False,
) -> httpx.Response:
    records: list[dict[str, Any]] = [{"value": value_of(code)} for code in codes]
    if numbered:
        for each, code in zip(records, codes, strict=True):
            each["publishing_id"] = split(code)[1]
    timeout = httpx.Timeout(10, read=seconds)
    body = {"records": records}
    return client.post(f"{ledger.path}/records", json=body, headers=headers, timeout=timeout)


def _records(page: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["offset"], one["value"]) for one in page["records"]]
