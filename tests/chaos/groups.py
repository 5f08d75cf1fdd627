"""Consumer groups under the same troubles: their members join, commit, leave, and wake as zombies.

Of each commit that was answered it is known when it was begun and when it was over, by one clock.
That is enough to see whether one passed that was another member's turn: generations of a partition
grow, so none passes that was begun after one of a later generation had passed.
"""

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import httpx

from chaos.ledger import Ledger
from chaos.load import AWAY_SECONDS, Load, ways_of

LEASE_MS: Final = 5_000
PAUSE_SECONDS: Final = 1.0
_WAIT_MS: Final = (0, 500, 1_000)
Claim = tuple[str, int]
"""A member, and the generation with which it holds a partition."""


class Passed(NamedTuple):
    """A commit that was answered 200."""

    generation: int
    begun: float
    ended: float


class GroupHistory:
    """What the members of one group saw. Every method may be called from any thread."""

    def __init__(self, path: str, name: str, shared: Sequence[Ledger]) -> None:
        """`path` is that of the stream or super stream, `shared` its partitions in their order."""
        self.name = name
        self.members_path = f"{path}/groups/{name}/members"
        self.shared = shared
        self.counts = Counter[str]()
        self._holders: dict[tuple[int, int], str] = {}
        """Who holds a partition, by its number and the generation."""
        self._passed: dict[int, list[Passed]] = {}
        self._lock = threading.Lock()

    @property
    def passed_count(self) -> int:
        return self.counts["passed"]

    def note_holder(self, number: int, claim: Claim) -> None:
        """A member was told that it holds a partition."""
        member_id, generation = claim
        with self._lock:
            self.counts["assignments"] += 1
            if self._holders.setdefault((number, generation), member_id) != member_id:
                self.shared[number].fault(f"{generation} of {self.name} has two holders")

    def note_passed(self, number: int, commit: Passed) -> None:
        with self._lock:
            self._passed.setdefault(number, []).append(commit)
            self.counts["passed"] += 1

    def note(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def check(self) -> list[str]:
        """What was wrong, in words: commits that passed after their member's turn."""
        wrong = []
        for number, passed in self._passed.items():
            commits = sorted(passed, key=lambda one: one.ended)
            ends = [one.ended for one in commits]
            highest = list(accumulate((one.generation for one in commits), max))
            for one in commits:
                before = bisect_right(ends, one.begun)
                if before and highest[before - 1] > one.generation:
                    stream = self.shared[number].name
                    wrong.append(f"{stream}: {one} of {self.name} passed, and was fenced")
        return wrong


class GroupMember:
    """One program of a group, through its lives."""

    def __init__(self, history: GroupHistory, name: str) -> None:
        self._history = history
        self._name = name
        self._member_id: str | None = None
        self._generations: dict[int, int] = {}
        self._revoked: dict[int, int] = {}
        self._zombie: tuple[int, Claim] | None = None
        """What it held in an earlier life, of which it commits something now and then."""

    def work(self, load: Load, chance: random.Random) -> None:
        """Live until nothing new is to begin, and leave then."""
        with ways_of(load.deployment) as ways:
            while not load.stopping.is_set() and not load.has_faults:
                client = chance.choice(ways[:2])
                if self._member_id is None:
                    self._join(load, client)
                elif chance.random() < 0.05:
                    self._leave(load, client)
                else:
                    self._beat(load, client, chance)
                    self._commit_all(load, client, chance)
                load.stopping.wait(chance.uniform(0, PAUSE_SECONDS))
            self._leave(load, ways[0])
            self._commit_as_a_zombie(load, ways[0], chance)

    def _ask(
        self, load: Load, client: httpx.Client, method: str, path: str, body: Any = None
    ) -> httpx.Response | None:
        """The answer, if one came that is no refusal for now."""
        try:
            answer = client.request(method, path, json=body, timeout=20)
        except httpx.TransportError:
            self._history.note("unknown")
            load.stopping.wait(AWAY_SECONDS)
            return None
        expected = answer.is_success or answer.json().get("code") in (
            "consumer-fenced",
            "member-expired",
        )
        if not expected:
            load.is_refusal(self._history.shared[0], answer)
            load.stopping.wait(AWAY_SECONDS)
            return None
        return answer

    def _join(self, load: Load, client: httpx.Client) -> None:
        body = {"member": self._name, "lease_ms": LEASE_MS}
        answer = self._ask(load, client, "POST", self._history.members_path, body)
        if answer is not None:
            self._history.note("joined")
            self._member_id = answer.json()["member_id"]
            self._hear(answer.json())

    def _leave(self, load: Load, client: httpx.Client) -> None:
        if self._member_id is None:
            return
        self._ask(load, client, "DELETE", f"{self._history.members_path}/{self._member_id}")
        self._forget()

    def _forget(self) -> None:
        for number, generation in self._generations.items():
            self._zombie = number, (str(self._member_id), generation)
        self._member_id, self._generations, self._revoked = None, {}, {}

    def _beat(self, load: Load, client: httpx.Client, chance: random.Random) -> None:
        released: dict[int, int] = {}
        if self._revoked and chance.random() < 0.7:
            released, self._revoked = self._revoked, {}
        body = {"holding": _as_json(self._generations), "released": _as_json(released)}
        path = f"{self._history.members_path}/{self._member_id}/heartbeat"
        way = f"{path}?wait_ms={chance.choice(_WAIT_MS)}"
        answer = self._ask(load, client, "POST", way, body)
        if answer is None:
            return
        if answer.is_success:
            self._hear(answer.json())
        else:
            self._history.note("expired")
            self._forget()

    def _hear(self, told: dict[str, Any]) -> None:
        assert self._member_id is not None
        self._generations = {one["partition"]: one["generation"] for one in told["assignments"]}
        self._revoked = {one["partition"]: one["generation"] for one in told["revoked"]}
        for number, generation in self._generations.items():
            self._history.note_holder(number, (self._member_id, generation))

    def _commit_all(self, load: Load, client: httpx.Client, chance: random.Random) -> None:
        for number, generation in self._generations.items():
            self._commit(load, client, chance, number, (str(self._member_id), generation))
        if self._zombie is not None and chance.random() < 0.3:
            self._commit(load, client, chance, *self._zombie)

    def _commit_as_a_zombie(self, load: Load, client: httpx.Client, chance: random.Random) -> None:
        """Once more what it held, until that is refused: its leave may not have come to the group, and
        then it is a member until its lease is over."""
        while self._zombie is not None and not (load.finishing.is_set() or load.has_faults):
            if self._commit(load, client, chance, *self._zombie):
                return
            load.finishing.wait(AWAY_SECONDS)

    def _commit(
        self, load: Load, client: httpx.Client, chance: random.Random, number: int, claim: Claim
    ) -> bool:
        """Commit something as somebody; whether that was refused for good."""
        shared = self._history.shared[number]
        body = {
            "next_offset": chance.randint(0, len(shared.seen)),
            "allow_regression": True,
            "member_id": claim[0],
            "generation": claim[1],
        }
        begun = time.monotonic()
        path = f"{shared.path}/consumers/{self._history.name}/offset"
        answer = self._ask(load, client, "PUT", path, body)
        if answer is None:
            return False
        if answer.is_success:
            self._history.note_passed(number, Passed(claim[1], begun, time.monotonic()))
            return False
        self._history.note("fenced")
        return True


def _as_json(generations: dict[int, int]) -> dict[str, int]:
    return {str(number): generation for number, generation in generations.items()}
