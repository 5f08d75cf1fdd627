"""Moves to another drive: how fast they copy, what appends notice, and what they cost a manifest."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from s3_server import Account, running_s3

from bench.figures import GIB, Figure, Goal, Sides, ratios
from bench.place import ROOT
from bench.pump import HttpLoad, Request
from bench.rows.replay import fill
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import http

MOVED_GIB: Final = float(os.environ.get("BENCH_MOVED_GIB", "0.5"))
"""What is moved in each round. The goal is meant of 10 GiB; half a GiB takes some two minutes."""
RECORDS_PER_GIB: Final = 10_000_000
"""Some hundred bytes each."""
MOVED: Final = "moved"
APPENDED: Final = "appended"
TIERED: Final = {"fragment": {"max_age_ms": 5_000}}
"""Filled faster than that, nearly all fragments have 64 MiB."""
MOVES_IN_FLIGHT: Final = 4
"""Objects that are copied at once, as by default; the plain upload puts as many."""
SETTINGS: Final = {
    "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_TIER_INTERVAL_MS": "86400000",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
}
UNBOUNDED: Final = {
    "BOTTOMLESS_UPLOADER_MOVE_BYTES_PER_SECOND": str(1 << 40),
    # Copies take half of it at most: four of 64 MiB, as many as the plain upload has.
    "BOTTOMLESS_UPLOADER_MEMORY_BYTES": str(512 << 20),
}
RATE: Final = 100
"""Appends a second, of one small batch each, beside a move."""
BATCH: Final = 100
APPEND_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 300.0
PLAIN, MOVE = "plain upload", "move"
ALONE, BESIDE = "appends alone", "appends beside a move"


@dataclass
class Side:
    """A server with a directory and S3, and one stream that lies in one of both."""

    ours: Ours
    entered: int = 0
    """Moves so far."""

    def size(self) -> float:
        """Bytes of all fragments of the stream."""
        return float(sum(one["bytes"] for one in self._get("tiers")["drives"]))

    def fragment_count(self) -> int:
        return sum(one["fragments"] for one in self._get("tiers")["drives"])

    def enter(self, drive: str) -> int:
        """Have as much of the stream moved as there is room for; how many moves that is."""
        end = self._get("offsets")["object_store_next_offset"]
        body = {"from_offset": 0, "to_offset": end, "drive": drive}
        answer = httpx.post(self._path("moves"), json=body, timeout=60).raise_for_status()
        count = len(answer.json()["moves"])
        self.entered += count
        return count

    def move(self, drive: str) -> int:
        """Move all of the stream, and wait until it is there; how many moves that took."""
        before = self.entered
        while self.enter(drive):
            self.wait_moved()
        return self.entered - before

    def has_moved(self) -> bool:
        """Whether no move is under way."""
        return self.ours.counters().total("bottomless_uploader_moves_total") >= self.entered

    def wait_moved(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.has_moved():
            if time.monotonic() > deadline:
                raise RuntimeError("the move takes too long")
            # No answer of the API waits for the end of a move.
            time.sleep(0.02)

    def _get(self, what: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(self._path(what), timeout=60).raise_for_status().json()
        return found

    def _path(self, what: str) -> str:
        return f"{self.ours.url}/v1/streams/{MOVED}/{what}"


def running_side(
    stage: Stage, name: str, account: Account, endpoint: str, more: dict[str, str]
) -> Side:
    """A server whose stream lies in the directory."""
    drives = {"cold": {"number": 1, "url": account.store_url(endpoint, name)}}
    settings = {
        **SETTINGS,
        **more,
        **account.environment(),
        "BOTTOMLESS_DRIVES": json.dumps(drives),
    }
    ours = stage.stack.enter_context(running_ours(stage.directory / name, settings))
    httpx.post(f"{ours.url}/v1/admin/drives", json={"name": "cold"}, timeout=60).raise_for_status()
    ours.create(MOVED, TIERED)
    ours.create(APPENDED)
    fill(ours, MOVED, int(MOVED_GIB * RECORDS_PER_GIB))
    ours.wait_uploaded(MOVED)
    return Side(ours)


def moving(side: Side) -> Runner:
    """Copies to S3 as fast as it goes; each run ends with everything back in the directory."""
    size, fragments = side.size(), side.fragment_count()

    def run(_: float) -> Figure:
        before, spent = side.ours.store_calls(), side.ours.tree.cpu_seconds()
        started = time.monotonic()
        moves = side.move("cold")
        seconds = time.monotonic() - started
        spent = side.ours.tree.cpu_seconds() - spent
        after = side.ours.store_calls()
        calls = {name: after.get(name, 0) - before.get(name, 0) for name in ("get", "put")}
        extra = {f"{name}s per GiB": count / size * GIB for name, count in calls.items()}
        extra |= {f"{name}s beside": (count - fragments) / moves for name, count in calls.items()}
        side.move("default")
        return Figure(size, seconds, cpu_seconds=spent, extra=extra)

    return run


def uploading(side: Side, account: Account, endpoint: str) -> Runner:
    """Puts the same objects, read from the directory, by a client that knows nothing of us."""
    objects = side.ours.data_dir / "objects"

    def run(_: float) -> Figure:
        # Not once for all rounds: what has moved away and back has another name.
        paths = sorted(objects.rglob("*.fragment"))
        with account.client(endpoint) as client, ThreadPoolExecutor(MOVES_IN_FLIGHT) as pool:

            def put(path: Path) -> int:
                data = path.read_bytes()
                client.put_object(Bucket=account.bucket, Key=f"plain/{path.name}", Body=data)
                return len(data)

            started = time.monotonic()
            size = sum(pool.map(put, paths))
            seconds = time.monotonic() - started
            for path in paths:
                client.delete_object(Bucket=account.bucket, Key=f"plain/{path.name}")
        return Figure(size, seconds)

    return run


def appending(side: Side, *, beside: bool) -> Runner:
    """Small appends at a fixed rate to a stream that is not moved, with or without a move of the other
    one at the speed that is set by default."""
    request = Request(http.append(APPENDED, http.ARROW, http.arrow_body(BATCH)), BATCH)
    load = HttpLoad(side.ours.port, side.ours.tree, [request], 4, rate=RATE, settle_seconds=0)

    def run(_: float) -> Figure:
        if beside:
            side.enter("cold")
        figure = load(APPEND_SECONDS)
        if not beside:
            return figure
        ended = side.has_moved()
        side.wait_moved()
        side.move("cold")
        side.move("default")
        return replace(figure, extra={**figure.extra, "the move had ended": float(ended)})

    return run


def _set_up(stage: Stage) -> None:
    account = Account("bench", "bench", "bench-secret")
    endpoint = stage.stack.enter_context(running_s3(stage.directory / "s3", account))
    fast = running_side(stage, "fast", account, endpoint, UNBOUNDED)
    stage.runners[PLAIN] = uploading(fast, account, endpoint)
    stage.runners[MOVE] = moving(fast)
    paced = running_side(stage, "paced", account, endpoint, {})
    stage.runners[ALONE] = appending(paced, beside=False)
    stage.runners[BESIDE] = appending(paced, beside=True)
    stage.notes.append(
        f"{fast.size() / GIB:.2f} GiB in {fast.fragment_count()} fragments from a directory to an S3 server of this machine, {MOVES_IN_FLIGHT} objects "
        "at once on both sides. A move reads each object, compares its checksum, puts it, looks at it, "
        "and has the manifest name it; a plain upload is botocore's puts. Appends have "
        f"{BATCH} records each, {RATE} a second, beside a move of 64 MiB/s, the default."
    )


def _p99_ratios(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(BESIDE, ()), sides.get(ALONE, ()), strict=False)
    return [beside.p99_ms / alone.p99_ms for beside, alone in pairs] or None


def _known(text: str, name: str, at_most: float | None) -> Goal:
    def read(sides: Sides) -> list[float]:
        return [figure.extra[name] for figure in sides.get(MOVE, ())]

    return Goal(text, read, at_most=at_most, unit="requests")


SMALL, LARGE = 1_000, 1_000_000
NAME: Final = "move one fragment"


def _set_up_manifest(stage: Stage) -> None:
    program, answer = ROOT / "bench" / "manifest_scale.py", stage.directory / "scale.json"
    subprocess.run(
        [
            sys.executable,
            program,
            "--moves",
            "--json",
            answer,
            f"--large={LARGE}",
            f"--small={SMALL}",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (found,) = json.loads(answer.read_text())
    for size, cpu_us, puts, height in zip(
        (SMALL, LARGE), found["cpu_us"], found["puts"], found["heights"], strict=True
    ):
        seconds = cpu_us / 1e6
        extra = {"puts": puts, "height": height}
        figure = Figure(1, seconds, cpu_seconds=seconds, p50_ms=cpu_us / 1e3, extra=extra)
        stage.runners[f"{NAME}, {size:,}"] = lambda _, found=figure: found  # type: ignore[misc]


def _slower(sides: Sides) -> list[float] | None:
    return ratios(sides, f"{NAME}, {SMALL:,}", f"{NAME}, {LARGE:,}")


def _puts_beyond_height(sides: Sides) -> list[float]:
    found = sides.get(f"{NAME}, {LARGE:,}", ())
    return [figure.extra["puts"] - figure.extra["height"] for figure in found]


ROWS: Final = (
    Row(
        "tiers-move",
        "A move from a directory to S3 beside a plain upload of the same objects",
        "bytes",
        (
            Goal("≥ 0.6 x plain upload", lambda sides: ratios(sides, MOVE, PLAIN), at_least=0.6),
            Goal("p99 of appends beside a move: ≤ 1.1 x that alone", _p99_ratios, at_most=1.1),
            _known("GETs beside one of each fragment: ≤ 12 a move", "gets beside", 12),
            _known("PUTs beside one of each fragment: ≤ 2 a move", "puts beside", 2),
            _known("GETs per GiB", "gets per GiB", None),
            _known("PUTs per GiB", "puts per GiB", None),
        ),
        _set_up,
        warms_up=False,
        rounds_max=3,
    ),
    Row(
        "tiers-manifest",
        f"A move of one fragment in a manifest of {LARGE:,} (CPU alone, stores in memory)",
        "operations",
        (
            Goal(f"≤ 1.5 x that in one of {SMALL:,} fragments", _slower, at_most=1.5),
            Goal("objects put: ≤ height + 1", _puts_beyond_height, at_most=1, unit="beyond height"),
        ),
        _set_up_manifest,
        warms_up=False,
        rounds_max=1,
    ),
)
