"""Who looks after tiers by hand: moves to and fro, gives up, promotes, and changes the policy."""

import asyncio
import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from simulation.clients import LATER, Services
from simulation.expected import Broken, Expected
from simulation.invariants import Watch

_ANY: Final = {"if-match": "*"}
_GONE: Final = (404,)
_VERIFY_SECONDS: Final = 30.0
"""After so long a client asks no more."""
_TOO_LATE: Final = (404, 409, 422)
"""The move has ended, or what is meant is trimmed or has no tiers."""


async def verified(
    services: Services, expected: Expected, *, checksums: bool
) -> list[dict[str, Any]] | None:
    """Have a stream verified; what is said to be wrong beside drives that are away, or None where
    there is no answer.

    Raises:
        Broken: the verification failed.
    """
    path = f"/v1/streams/{expected.name}/manifest/verify"
    body = {"checksums": checksums}
    answer = await services.ask(services.manifest, "POST", path, body=body)
    if answer is None or answer[0] in (*LATER, *_GONE):
        return None
    if answer[0] != 202:
        raise Broken(f"a verification was answered {answer}")
    end = asyncio.get_running_loop().time() + _VERIFY_SECONDS
    path = f"/v1/operations/{answer[1]['operation_id']}"
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.2)
        told = await services.ask(services.manifest, "GET", path)
        if expected.deleted or (told is not None and told[0] == 404):
            # It was lost with coordination.
            return None
        if told is None or told[0] != 200 or told[1]["state"] not in ("succeeded", "failed"):
            continue
        if told[1]["state"] == "failed":
            raise Broken(f"a verification of {expected.name} ended so: {told[1]}")
        report: dict[str, Any] = told[1]["result"]
        return [one for one in report["faults"] if one["kind"] != "drive-away"]
    return None


@dataclass
class TierOperator:
    """One for each stream."""

    services: Services
    expected: Expected
    watch: Watch
    chance: random.Random
    policy: Callable[[random.Random], list[dict[str, Any]]]
    drives: list[str]
    lost: AbstractSet[int]
    """Numbers of drives that may be lost for good."""

    async def run(self) -> None:
        works = (
            *(self._move, self._move, self._promote, self._give_up, self._configure, self._look),
            self._verify,
        )
        while not self.services.closing and not self.expected.deleted:
            await asyncio.sleep(self.chance.uniform(0.05, 1))
            await self.chance.choice(works)()

    async def _move(self) -> None:
        if (found := self._range()) is not None:
            body = {**found, "drive": self.chance.choice(self.drives)}
            await self._ask("POST", "moves", (202, *_TOO_LATE), "moves by hand", body)

    async def _promote(self) -> None:
        if (found := self._range()) is not None:
            await self._ask("POST", "tiers/promote", (202, *_TOO_LATE), "promotions", found)

    async def _give_up(self) -> None:
        record = self.watch.record()
        if record is not None and record.moves:
            copy = f"{self.chance.choice(record.moves).copy:016x}"
            await self._ask("DELETE", f"moves/{copy}", (204, *_TOO_LATE), "moves given up")

    async def _configure(self) -> None:
        tiers = self.policy(self.chance) if self.chance.random() < 0.8 else None
        # A policy may name no drive that is lost.
        allowed = (200, *_GONE, *((422,) if self.lost else ()))
        await self._ask("PATCH", "", allowed, "changes of policy", {"tiers": tiers})

    async def _look(self) -> None:
        await self._ask("GET", "tiers", (200, *_GONE), "looks at tiers")
        await self._ask("POST", "tiers/preview", (200, *_GONE), "previews")

    async def _verify(self) -> None:
        wrong = await verified(self.services, self.expected, checksums=self.chance.random() < 0.5)
        if wrong:
            raise Broken(f"{self.expected.name} is said to be damaged: {wrong[:3]}")
        self.services.story.count("verifications", int(wrong is not None))

    def _range(self) -> dict[str, int] | None:
        record = self.watch.record()
        if record is None or not record.published_next:
            return None
        first = self.chance.randrange(record.published_next)
        return {
            "from_offset": first,
            "to_offset": self.chance.randint(first, record.published_next - 1) + 1,
        }

    async def _ask(
        self,
        method: str,
        path: str,
        allowed: tuple[int, ...],
        counted: str,
        body: dict[str, Any] | None = None,
    ) -> None:
        path = f"/v1/streams/{self.expected.name}/{path}".rstrip("/")
        answer = await self.services.ask(
            self.services.manifest, method, path, body=body, headers=_ANY
        )
        if answer is None or answer[0] in LATER or self.expected.deleted:
            return
        if answer[0] not in allowed:
            raise Broken(f"{method} {path} was answered {answer}")
        self.services.story.count(counted, int(answer[0] < 300))
