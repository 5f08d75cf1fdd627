"""Who uses the streams: each sends or reads, and holds every answer against what it knows."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from simulation.expected import Answered, Broken, Expected, past_gaps
from simulation.invariants import Watch
from simulation.network import Network, NoAnswer, NoConnection, Reply, Request
from simulation.programs import Program
from simulation.story import Story

ANSWER_SECONDS: Final = 6.0
ASKED_SHARE: Final = 0.4
"""Of what producers were not told the outcome of: they ask for their last number."""
LATER: Final = frozenset({429, 502, 503, 504})
"""Statuses after which it is tried again."""


@dataclass
class Services:
    """The services as simulated clients ask them, and whether the clients are to go on."""

    network: Network
    story: Story
    nodes: list[Program]
    manifest: Program
    reader: Program
    closing: bool = False
    """Clients finish what they are at, and begin nothing."""
    heard: Callable[[Program], None] | None = None
    """Told of the next node whose acknowledgement of a leaderless append came to its client."""
    storage_failed: dict[str, float] = field(default_factory=dict)
    """When it was last said of a path that the disk lost what it should hold."""

    async def ask(
        self,
        program: Program,
        method: str,
        path: str,
        *,
        query: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        body_seconds: float = 0.0,
    ) -> tuple[int, Any] | None:
        """Status and body of an answer; None where none came, and nobody knows why. The second half
        of what is sent may arrive `body_seconds` later.

        Raises:
            Broken: the answer says that something is wrong with the program.
        """
        sent = {"content-type": "application/json", **(headers or {})}
        raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        request = Request(method, path, query.encode(), raw, data, body_seconds)
        seconds = ANSWER_SECONDS + body_seconds
        try:
            reply = await self.network.ask("client", program.public_url, request, seconds)
        except NoConnection:
            return 503, {"outcome": "none", "code": "no-connection"}
        except NoAnswer:
            return None
        told = _checked(f"{method} {path}?{query}", reply)
        if reply.status == 503 and told["code"] == "storage-failed":
            self.storage_failed[path] = asyncio.get_running_loop().time()
        return reply.status, told


def _checked(what: str, reply: Reply) -> Any:
    body = orjson.loads(reply.body) if reply.body else None
    code = body.get("code") if isinstance(body, dict) else None
    if reply.status >= 500 and code in ("internal", "data-corrupt", "data-missing", None):
        raise Broken(f"{what} was answered {reply.status} {reply.body!r}")
    return body


@dataclass
class Writer:
    """Sends numbered values to one stream through any node."""

    services: Services
    expected: Expected
    name: str
    chance: random.Random
    number: int = 0
    end: int = 0
    """The highest next offset that it was told of."""
    tried: set[tuple[str, int]] = field(default_factory=set)
    """Nodes, each with its life, that were asked to store `last`."""
    last: str = ""

    @property
    def path(self) -> str:
        return f"/v1/streams/{self.expected.name}/records"

    @property
    def over(self) -> bool:
        return self.services.closing or self.expected.deleted

    @property
    def asks(self) -> bool:
        """Whether it asks what is known of it before it sends again."""
        return not self.expected.leaderless and self.chance.random() < ASKED_SHARE

    def values(self) -> list[str]:
        count = self.chance.choice((1, 1, 2, 5, 12))
        made = []
        for _ in range(count):
            padding = "x" * int(6000 * self.chance.random() ** 4)
            made.append(f"{self.name} {self.number} {padding}")
            self.number += 1
        self.expected.sent.update(made)
        return made

    async def send(
        self, values: list[str], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]] | None:
        node = self.chance.choice(self.services.nodes)
        body = {"records": self.records(values)}
        if self.last != values[-1]:
            self.tried, self.last = set(), values[-1]
        self.tried.add((node.name, node.lives))
        gaps = set(self.expected.gaps)
        blind = self.services.network.is_blind()
        answer = await self.services.ask(node, "POST", self.path, body=body, headers=headers)
        if answer is None:
            self.services.story.count("appends of unknown outcome")
            return None
        status, told = answer
        if status == 200:
            # Nobody has a leaderless stream, so nobody believes in vain to have it.
            blind = (blind or self.services.network.is_blind()) and not self.expected.leaderless
            self.take(told, values, gaps, blind=blind)
            if self.expected.leaderless and told["first_offset"] is not None:
                self._note(node, told["first_offset"], told["next_offset"])
                if self.services.heard is not None:
                    self.services.heard(node)
            self.end = max(self.end, told["next_offset"] or 0)
            self.services.story.count("appends acknowledged")
            self.services.story.count("records acknowledged", len(values))
        elif status == 404 and not self.expected.deleted:
            raise Broken(f"{self.expected.name} is said not to exist: {told}")
        return status, told

    async def is_known(self, producer_id: str, before: int, last: int) -> bool:
        """Ask any node for the last number of a producer, as one does that comes back and does not know
        what became of what it sent last; whether that is `last`, and not the one `before`.

        Raises:
            Broken: less is said to be stored than the producer was told before, or a number that it
                never gave.
        """
        node, path = (
            self.chance.choice(self.services.nodes),
            self.path.replace("records", "producers"),
        )
        answer = await self.services.ask(node, "GET", f"{path}/{producer_id}")
        if answer is None or answer[0] in LATER or self.expected.deleted:
            return False
        self.services.story.count("producers that asked for their last number")
        if answer[0] not in (200, 404):
            raise Broken(f"{producer_id} was not told its last number: {answer}")
        number = answer[1]["last_seq"] if answer[0] == 200 else None
        known = -1 if number is None else int(number)
        if known == last:
            self.expected.on_told(producer_id, last)
        elif known != before and not self.expected.has_forgotten(self.name):
            raise Broken(
                f"{producer_id}: {before} are stored, and perhaps {last}; it is told {known}"
            )
        return known == last

    def records(self, values: list[str]) -> list[dict[str, Any]]:
        """What is sent of them."""
        return [{"value": value} for value in values]

    def take(
        self, told: dict[str, Any], values: list[str], gaps: set[tuple[int, int]], *, blind: bool
    ) -> None:
        """Hold an answer of success against what is known."""
        self.expected.acknowledge(told["first_offset"], values, gaps, blind=blind)

    def _note(self, node: Program, first_offset: int, next_offset: int) -> None:
        """Remember who has to bring back what was acknowledged. Where others were asked before,
        one of them may have committed it, and has died without a note: whoever waits for notes before
        it answers has waited for that one too, and of the others nothing is known."""
        if self.tried != {(node.name, node.lives)} and not node.noted:
            return
        now = asyncio.get_running_loop().time()
        answered = Answered(node.name, node.lives, now, node.noted)
        for offset in range(first_offset, next_offset):
            self.expected.acknowledged_by.setdefault(offset, answered)


@dataclass
class StrictProducer(Writer):
    """Numbers its records and sends again what it was not told the outcome of."""

    lives: int = 0
    base: int = 0
    """Its number when this life of it began."""

    async def run(self) -> None:
        while not self.over:
            sequence = self.number - self.base
            values = self.values()
            if sequence == 0:
                self.expected.stored_anew.update(values)
            producer_id, begun = f"{self.name}-{self.lives}", self.expected.acknowledged_next
            headers = {"producer-id": producer_id, "producer-seq": str(sequence)}
            while not self.expected.deleted:
                answer = await self.send(values, headers)
                if answer is not None and answer[0] == 200:
                    break
                if (
                    answer is not None
                    and answer[0] == 409
                    and self.expected.has_forgotten(self.name)
                ):
                    # What was known of it is lost; it begins anew, with what comes next.
                    self.lives, self.base = self.lives + 1, self.number
                    break
                if answer is not None and answer[0] not in LATER and answer[0] != 404:
                    raise Broken(f"{self.name} at {sequence} was answered {answer}")
                if self.asks and await self.is_known(
                    producer_id, sequence - 1, sequence + len(values) - 1
                ):
                    # It believes that, and never sends them again.
                    self.expected.promise(begun, None, values)
                    break
                self.services.story.count("appends repeated")
                await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            await asyncio.sleep(self.chance.uniform(0, 0.3))


class PlainWriter(Writer):
    """Sends each value once, now and then on condition that nobody else came before."""

    async def run(self) -> None:
        while not self.over:
            values = self.values()
            headers = {}
            conditional = self.chance.random() < 0.3
            expected_offset = self.end
            if conditional:
                headers["stream-expected-offset"] = str(expected_offset)
            answer = await self.send(values, headers)
            if answer is not None:
                status, told = answer
                if status == 200 and conditional and told["first_offset"] != expected_offset:
                    raise Broken(f"appended at {told}, on condition of {expected_offset}")
                if status == 412:
                    self.end = max(self.end, told["next_offset"])
                if status != 200 and (status not in LATER or told.get("outcome") == "none"):
                    self.expected.refuse(values)
                    self.services.story.count("appends refused")
            await asyncio.sleep(self.chance.uniform(0, 0.4))


@dataclass
class Reader:
    """Follows a stream page by page, and now and then begins anew somewhere."""

    services: Services
    expected: Expected
    watch: Watch
    chance: random.Random
    position: int = 0
    record_count: int = 0

    async def run(self) -> None:
        while not self.services.closing and not self.expected.deleted:
            if self.chance.random() < 0.05:
                self.position = self.expected.somewhere(self.chance, self.position)
            await self.page(limit=self.chance.choice((1, 7, 100)))
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def page(self, limit: int) -> bool:
        """Read one page; whether it is at the end, as far as anybody knows."""
        known_next = self.expected.acknowledged_next
        position = self.position
        answer = await self.services.ask(
            self.services.reader,
            "GET",
            f"/v1/streams/{self.expected.name}/records",
            query=f"offset={position}&limit={limit}&on_out_of_range=error",
        )
        if answer is None:
            return False
        status, told = answer
        if status == 410:
            self.skip(told)
            return False
        if status in LATER or (status == 404 and self.expected.deleted):
            self.services.story.count("pages refused")
            return False
        if status == 416 and known_next <= position:
            return False
        if status != 200:
            raise Broken(f"{self.expected.name} at {position} of {known_next}: {status} {told}")
        self.take(told, position)
        if told["up_to_date"] and told["next_offset"] < known_next:
            raise Broken(
                f"{self.expected.name}: said to end at {told['next_offset']}, below {known_next}"
            )
        return bool(told["up_to_date"])

    def take(self, told: dict[str, Any], position: int) -> None:
        """Hold a page against what is known, and go on after it."""
        gaps = {gap["first_offset"]: gap["next_offset"] for gap in told.get("gaps", ())}
        self._check_gaps(gaps)
        # Who had read what is lost by now stands inside of the gap.
        offset = past_gaps(gaps.items(), position)
        for record in told["records"]:
            if record["offset"] != offset:
                raise Broken(f"{self.expected.name}: {record['offset']} comes at {offset}")
            self.expected.show(offset, record["value"])
            offset = past_gaps(gaps.items(), offset + 1)
        self.position = offset
        if told["next_offset"] != self.position:
            raise Broken(f"{self.expected.name}: a page to {self.position} goes on at {told}")
        self.record_count += len(told["records"])
        self.services.story.count("records read", len(told["records"]))

    def _check_gaps(self, gaps: dict[int, int]) -> None:
        """What a page jumps over was accepted as lost."""
        if gaps:
            self.watch.look()
        for first, end in gaps.items():
            lost = self.expected.is_lost(first) and self.expected.is_lost(end - 1)
            if not lost and not self.expected.deleted:
                raise Broken(f"{self.expected.name}: jumps over {first} to {end}")

    def skip(self, told: dict[str, Any]) -> None:
        """Go on where the stream begins, or after a gap: it must be so indeed."""
        first = told["first_offset"]
        manifest = self.watch.look()
        if "readable_offset" in told and self.expected.is_lost(self.position):
            self.position = told["readable_offset"]
            return
        if manifest is not None and not self.position < first <= manifest.floor:
            raise Broken(f"{self.expected.name}: {told} at {self.position}, {manifest.floor}")
        self.expected.floor = max(self.expected.floor, first)
        self.position = first
        self.services.story.count("trimmed under a reader")


@dataclass
class Trimmer:
    """Trims a stream now and then, up to somewhere in what is published."""

    services: Services
    expected: Expected
    watch: Watch
    chance: random.Random
    operations: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while not self.services.closing and not self.expected.deleted:
            await asyncio.sleep(self.chance.uniform(1, 6))
            record = self.watch.record()
            if record is None or not record.published_next:
                continue
            before = self.expected.somewhere(self.chance, record.published_next)
            if self.expected.trimmed_below is not None:
                self.expected.trimmed_below = max(self.expected.trimmed_below, before)
            answer = await self.services.ask(
                self.services.manifest,
                "POST",
                f"/v1/streams/{self.expected.name}/trim",
                body={"before_offset": before},
            )
            if answer is None or answer[0] in LATER or self.expected.deleted:
                continue
            status, told = answer
            if status != 202:
                raise Broken(f"a trim to {before} was answered {status} {told}")
            self.operations.append(told["operation_id"])
            self.services.story.tell("trimmer", f"{self.expected.name} before {before}")
            self.services.story.count("trims")


@dataclass
class Operator:
    """Takes streams away from homes whose lease is gone, and accepts the loss."""

    services: Services
    watches: Mapping[str, Watch]
    streams: list[Expected]
    chance: random.Random

    async def take_over(self, seconds: float) -> None:
        """Try for so long, stream by stream, until it is so."""
        for _ in range(int(seconds / 0.1)):
            if self.services.closing:
                return
            for stream in self.streams:
                home = None if stream.deleted else self.watches[stream.name].home_without_lease()
                if home is not None:
                    await self.ask(stream, home)
            await asyncio.sleep(0.1)

    async def ask(self, stream: Expected, home: str) -> bool:
        """Ask for one takeover; whether it was taken up, or will not be."""
        stream.takeovers += 1
        answer = await self.services.ask(
            self.services.manifest,
            "POST",
            f"/v1/admin/streams/{stream.name}/takeover",
            body={"accept_loss": True, "expect_home": home},
        )
        self.services.story.tell("operator", f"takes {stream.name} over: {answer and answer[0]}")
        if answer is not None and answer[0] == 202:
            self.services.story.count("takeovers")
        elif answer is not None and answer[0] not in (409, 404, *LATER):
            raise Broken(f"a takeover was answered {answer}")
        return answer is not None and answer[0] not in LATER
