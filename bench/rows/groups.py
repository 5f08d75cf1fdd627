"""Members of consumer groups that say that they live, and how soon a dead one is followed."""

import asyncio
import time
from typing import Any, Final

import aiohttp
import httpx
import orjson

from bench.figures import Figure, Goal, Sides
from bench.pace import PacedLoad
from bench.pump import Request
from bench.rows.streams import create
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Stage

MEMBERS: Final = 10_000
GROUP_SIZE: Final = 100
"""Members of one group: each group has a stream of its own."""
LEASE_SECONDS: Final = 30.0
BEAT_SECONDS: Final = LEASE_SECONDS / 3
SHORT_LEASE_MS: Final = 5_000
JOINING: Final = 16
"""Groups that are filled at once."""
BEATING: Final = f"{MEMBERS:,} members, a heartbeat every {BEAT_SECONDS:g} s each"
DYING: Final = "a holder that dies"
CPU_MAX: Final = 0.6
P99_MS_MAX: Final = 50.0


async def _join(ours: Ours, streams: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Let everybody in; the path of each, and what it was told."""
    # Each group in the hands of one, so that joins do not meet each other in it.
    waiting = iter(streams)
    joined: list[tuple[str, dict[str, Any]]] = []

    async def work(session: aiohttp.ClientSession) -> None:
        for name in waiting:
            path = f"/v1/streams/{name}/groups/bench/members"
            for number in range(GROUP_SIZE):
                body = {"member": f"m{number}", "lease_ms": int(LEASE_SECONDS * 10_000)}
                async with session.post(f"{ours.url}{path}", json=body) as answer:
                    answer.raise_for_status()
                    told = await answer.json()
                joined.append((f"{path}/{told['member_id']}/heartbeat", told))

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(JOINING):
            group.create_task(work(session))
    return joined


def heartbeat(path: str, holding: dict[str, int]) -> bytes:
    """One heartbeat that does not wait, since it is the work of one that is measured."""
    body = orjson.dumps({"holding": holding})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _set_up(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    streams = create(ours, MEMBERS // GROUP_SIZE, "shared")
    joined = asyncio.run(_join(ours, streams))
    requests = [
        Request(
            heartbeat(
                path, {str(one["partition"]): one["generation"] for one in told["assignments"]}
            ),
            1,
        )
        for path, told in joined
    ]
    stage.runners[BEATING] = PacedLoad(ours.port, ours.tree, requests, BEAT_SECONDS)
    stage.runners[DYING] = lambda _: _followed(ours, streams[0])
    stage.notes.append(
        "The lease is ten times as long where members only beat, so that none of them ends while "
        "others join."
    )


def _followed(ours: Ours, stream: str) -> Figure:
    """How long after the end of its lease a silent holder is followed."""
    place = f"{ours.url}/v1/streams/{stream}/groups/dying/members"

    def join(name: str) -> dict[str, Any]:
        answer = httpx.post(place, json={"member": name, "lease_ms": SHORT_LEASE_MS})
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    spent, begun = ours.tree.cpu_seconds(), time.perf_counter()
    join(f"holder {time.time_ns()}".replace(" ", "-"))
    following = f"{place}/{join('follower')['member_id']}"
    while not httpx.post(f"{following}/heartbeat?wait_ms=1000", json={}).json()["assignments"]:
        pass
    took = time.perf_counter() - begun
    httpx.delete(following).raise_for_status()
    late = took - SHORT_LEASE_MS / 1000
    return Figure(
        units=1,
        seconds=took,
        cpu_seconds=ours.tree.cpu_seconds() - spent,
        extra={"seconds after the lease": late},
    )


def _core_shares(sides: Sides) -> list[float]:
    return [one.cpu_busy_seconds / one.seconds for one in sides.get(BEATING, ())]


def _p99s(sides: Sides) -> list[float]:
    return [one.p99_ms for one in sides.get(BEATING, ())]


def _late(sides: Sides) -> list[float]:
    return [one.extra["seconds after the lease"] for one in sides.get(DYING, ())]


ROWS: Final = (
    Row(
        "groups",
        f"{MEMBERS:,} members of {MEMBERS // GROUP_SIZE:,} groups, heartbeats at a third of 30 s",
        "heartbeats",
        (
            Goal("p99 of a heartbeat ≤ 50 ms", _p99s, at_most=P99_MS_MAX, unit="ms"),
            Goal("share of a core ≤ 0.6", _core_shares, at_most=CPU_MAX, unit="of a core"),
            Goal("next holder ≤ 1 s after the lease", _late, at_most=1.0, unit="s"),
        ),
        _set_up,
        warms_up=False,
        rounds_max=2,
        guess_seconds=180,
    ),
)
