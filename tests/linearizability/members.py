"""Members of one consumer group at once, over sockets that break: they join, commit, leave, and commit
once more as who they were, and write down what they saw.

Each commit stores another offset, so that what is stored says whose it is.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, Final

import httpx
from support.waiting import until

from linearizability.history import (
    Commit,
    Committed,
    Event,
    Fenced,
    Held,
    Hold,
    Leave,
    Left,
    Look,
    Place,
    Result,
)
from linearizability.recording import Client, NoAnswer, NothingHappened, Recording

GROUP: Final = "billing"
MEMBER_COUNT: Final = 4
RECORD_COUNT: Final = 500
"""Records of the stream, and so commits that a recording may have."""


class Member(Client):
    """One program of the group."""

    def __init__(self, recording: Recording, name: str, url: str, offsets: Iterator[int]) -> None:
        super().__init__(recording, name, url)
        stream = f"/v1/streams/{recording.stream}"
        self._members = f"{stream}/groups/{GROUP}/members"
        self._offset = f"{stream}/consumers/{GROUP}/offset"
        self._offsets = offsets
        self._member_id: str | None = None
        self._claims: list[tuple[str, int]] = []
        """All that it ever held, the last one of now."""
        self._holds = False

    def take_part(self, operation_count: int) -> None:
        """Live through some lives, in an order made up from the seed."""
        for _ in range(operation_count):
            if self._member_id is None:
                self._join()
            match self._chance.randrange(8):
                case 0:
                    self._leave()
                case 1 | 2:
                    self._beat()
                case 3 | 4:
                    self._beat()
                    if self._holds:
                        self._commit_as(*self._claims[-1])
                case 5 | 6:
                    # It may have left, or have been replaced: that is for the server to know.
                    if self._claims:
                        self._commit_as(*self._chance.choice(self._claims[-3:]))
                case _:
                    self._look()

    def bid_farewell(self) -> None:
        """Commit if it holds the stream, leave, and commit once more as who it was."""
        if self._member_id is None:
            self._join()
        self._beat()
        if self._holds:
            self._commit_as(*self._claims[-1])
        self._leave()
        if self._claims:
            self._commit_as(*self._claims[-1])

    def append_records(self, record_count: int) -> None:
        """What the group reads."""
        records = [{"value": "x"}] * record_count

        def taken() -> bool:
            # Twice is as good as once.
            with suppress(NoAnswer, NothingHappened):
                answer = self._ask("POST", self._records, json={"records": records})
                assert answer.is_success, answer.text
                return True
            return False

        until(taken, what="the records of the group")

    def conclude_group(self) -> None:
        """What is stored, when nobody commits any more."""
        self._look()

    def _commit_as(self, member_id: str, generation: int) -> None:
        self._do(Commit(member_id, generation, next(self._offsets)), self._commit)

    def _look(self) -> None:
        self._do(Look(), self._place)

    def _join(self) -> None:
        body = {"member": self._name, "lease_ms": 300_000}
        self._hear("POST", self._members, body)

    def _beat(self) -> None:
        if self._member_id is not None:
            holding = {"0": self._claims[-1][1]} if self._holds else {}
            body = {"holding": holding, "released": {}}
            self._hear("POST", f"{self._members}/{self._member_id}/heartbeat", body)

    def _leave(self) -> None:
        if self._member_id is not None:
            # Where nobody answers it may be a member for longer, and joins under its name anew.
            self._do(Leave(self._member_id), self._gone)
        self._member_id, self._holds = None, False

    def _gone(self, operation: Leave) -> Result:
        answer = self._ask("DELETE", f"{self._members}/{operation.member_id}")
        assert answer.is_success or answer.status_code == httpx.codes.NOT_FOUND, answer.text
        return Left()

    def _hear(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Take up what an answer says that this member holds."""
        invoked = time.monotonic()
        try:
            answer = self._ask(method, path, json=body)
        except (NoAnswer, NothingHappened):
            self._wait_alive()
            return
        returned = time.monotonic()
        if answer.status_code == httpx.codes.NOT_FOUND:
            self._member_id, self._holds = None, False
            return
        assert answer.is_success, answer.text
        told = answer.json()
        self._member_id = told.get("member_id", self._member_id)
        assert self._member_id is not None
        self._holds = bool(told["assignments"])
        for one in told["assignments"]:
            claim = (self._member_id, one["generation"])
            if claim not in self._claims:
                self._claims.append(claim)
            event = Event(self._name, Hold(claim[0]), Held(claim[1]), invoked, returned)
            self._recording.add(event)

    def _commit(self, operation: Commit) -> Result:
        body = {**operation._asdict(), "allow_regression": True}
        answer = self._ask("PUT", self._offset, json=body)
        if answer.is_success:
            return Committed()
        assert answer.json()["code"] == "consumer-fenced", answer.text
        return Fenced()

    def _place(self, _: Look) -> Result:
        answer = self._ask("GET", self._offset)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return Place(None)
        assert answer.is_success, answer.text
        return Place(answer.json()["next_offset"])


def record_group(
    recording: Recording, operation_count: int, meanwhile: Callable[[], None] | None = None
) -> None:
    """Let the members of one group live beside each other; in the end look at what is stored."""
    offsets = count(1)
    with ExitStack() as closing:

        def a_member(name: str, url: str) -> Member:
            member = Member(recording, name, url, offsets)
            closing.callback(member.close)
            return member

        last = a_member("last", recording.direct_url)
        last.append_records(RECORD_COUNT)
        members = [a_member(f"pod-{number}", recording.url) for number in range(MEMBER_COUNT)]
        with ThreadPoolExecutor(len(members)) as threads:
            working = [threads.submit(one.take_part, operation_count) for one in members]
            if meanwhile is not None:
                meanwhile()
            for each in working:
                each.result()
        for member in members:
            member.bid_farewell()
        last.conclude_group()
