"""Many members of one group on a real server join, commit and leave at random (G7); in the middle of
it the Valkey forgets everything, and is rebuilt (G8).

How long nobody held the stream is asserted in virtual time, by the model and the simulation: here it
would be a question of how fast the machine is. Here each commit is part of a history, by one clock.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.contract import new_stream
from support.lost_coordination import await_loss, flush, rebuild
from support.server import AllInOne
from support.stored import StoredFiles
from support.valkey import running_valkey
from support.waiting import eventually

from bottomless.client import AsyncClient
from bottomless.errors import Code, StoreError

MEMBERS: Final = int(os.environ.get("BOTTOMLESS_TEST_MEMBERS", "8"))
LIVES: Final = int(os.environ.get("BOTTOMLESS_TEST_LIVES", "2"))
"""How often each of them joins."""
SEED: Final = int(os.environ.get("BOTTOMLESS_TEST_SEED", "7"))
GROUP: Final = "billing"
LEASE_MS: Final = 5_000
RECORDS: Final = 500


class Tried(NamedTuple):
    """A commit that was answered: as whom, when it was begun and when it was over."""

    generation: int
    begun: float
    ended: float
    passed: bool


class History:
    """What all members saw, by one clock."""

    def __init__(self) -> None:
        self.holders: dict[int, str] = {}
        self.commits: list[Tried] = []
        self.ended_lives = 0

    def holds(self, generation: int, member_id: str) -> None:
        """A member was told that it holds the stream with this generation."""
        assert self.holders.setdefault(generation, member_id) == member_id, (
            "two hold one generation"
        )

    def refused(self, generation: int) -> bool:
        """Whether a commit of it was refused."""
        return any(one.generation == generation and not one.passed for one in self.commits)

    def check(self) -> None:
        """No commit passes that was begun after one of a later generation had passed."""
        passed = [one for one in self.commits if one.passed]
        assert passed
        for one in passed:
            later = [two for two in passed if two.generation > one.generation]
            assert all(two.ended > one.begun for two in later), one


class Member:
    """One program, through its lives."""

    def __init__(self, client: AsyncClient, stream: str, name: str, history: History) -> None:
        self.client = client
        self.stream = stream
        self.name = name
        self.history = history
        self.chance = random.Random(f"{SEED} {name}")
        self.member_id = ""
        self.generation: int | None = None

    async def run(self) -> None:
        for _ in range(LIVES):
            await self._join()
            for _ in range(self.chance.randrange(2, 6)):
                await self._beat()
                await self._commit()
            await self._leave()

    async def hold(self) -> None:
        """Live once more, however long it takes to hold the stream and to be refused afterwards."""
        await self._join()
        while self.generation is None:
            await self._beat()
        generation = self.generation
        await self._commit()
        await self._leave()
        while not self.history.refused(generation):
            await self._commit_as(self.member_id, generation)

    async def _leave(self) -> None:
        zombie = self.member_id, self.generation
        with suppress(StoreError):
            await self.client.leave_group(self.stream, GROUP, self.member_id)
        # It says so once more, as one that does not know that it has left.
        await self._commit_as(*zombie)
        self.generation = None
        self.history.ended_lives += 1

    async def _join(self) -> None:
        while True:
            with suppress(StoreError):
                joined = await self.client.join_group(
                    self.stream, GROUP, self.name, lease_ms=LEASE_MS
                )
                break
            await asyncio.sleep(0.05)
        self.member_id, self.generation = joined["member_id"], None
        self._hear(joined)

    def _hear(self, told: dict[str, Any]) -> None:
        self.generation = None
        for one in told["assignments"]:
            self.generation = one["generation"]
            self.history.holds(one["generation"], self.member_id)

    async def _beat(self) -> None:
        holding = {} if self.generation is None else {0: self.generation}
        try:
            told = await self.client.send_heartbeat(
                self.stream, GROUP, self.member_id, holding=holding, released={}, wait_ms=100
            )
        except StoreError as error:
            if error.code is Code.MEMBER_EXPIRED:
                await self._join()
            else:
                await asyncio.sleep(0.05)
            return
        self._hear(told)

    async def _commit(self) -> None:
        await self._commit_as(self.member_id, self.generation)

    async def _commit_as(self, member_id: str, generation: int | None) -> None:
        if generation is None:
            return
        offset, begun = self.chance.randrange(RECORDS), time.monotonic()
        try:
            await self.client.commit(
                self.stream,
                GROUP,
                offset,
                allow_regression=True,
                claim=(member_id, generation),
                retry_seconds=0,
            )
        except StoreError as error:
            if error.code is not Code.CONSUMER_FENCED:
                return
            passed = False
        else:
            passed = True
        ended = time.monotonic()
        self.history.commits.append(Tried(generation, begun, ended, passed))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AllInOne, str]]:
    directory: Path = tmp_path_factory.mktemp("groups")
    with running_valkey(directory / "valkey") as valkey:
        settings = {
            "BOTTOMLESS_COORDINATION_URL": valkey.url,
            "BOTTOMLESS_STORE_URL": StoredFiles(directory / "objects").url,
            "BOTTOMLESS_MANIFEST_GROUP_CHECK_MS": "100",
            "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
            "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
            "BOTTOMLESS_MANIFEST_REBUILD_WAL_WAIT_MS": "0",
        }
        with AllInOne(directory / "data", settings) as server:
            yield server, valkey.url


@pytest.mark.timeout(3_600)
async def test_each_generation_is_one_members_and_no_deposed_member_commits(
    deployment: tuple[AllInOne, str],
) -> None:
    """G7."""
    await come_and_go(*deployment, losing=False)


@pytest.mark.timeout(3_600)
async def test_a_loss_of_coordination_in_the_middle_gives_no_generation_twice(
    deployment: tuple[AllInOne, str],
) -> None:
    """G8."""
    await come_and_go(*deployment, losing=True)


async def come_and_go(server: AllInOne, valkey_url: str, *, losing: bool) -> None:
    history = History()
    with server.client() as plain:
        stream = new_stream(plain)
        stream.append(*("x" for _ in range(RECORDS)))
        async with AsyncClient(server.url) as client:
            members = [
                Member(client, stream.name, f"pod-{number}", history) for number in range(MEMBERS)
            ]
            running = [asyncio.create_task(one.run()) for one in members]
            highest = 0
            if losing:
                await eventually(lambda: history.ended_lives >= MEMBERS)
                await asyncio.to_thread(flush, valkey_url)
                await asyncio.to_thread(await_loss, plain)
                highest = max(history.holders)
                await asyncio.to_thread(rebuild, plain)
            await asyncio.gather(*running)
            # Whoever comes after all that gets the stream, with a generation that nobody had.
            last = Member(client, stream.name, "last", history)
            await last.hold()
    history.check()
    assert {one.passed for one in history.commits} == {True, False}
    if losing:
        assert any(generation > highest + 2**39 for generation in history.holders)
