"""What the memory of the services does while clients mean harm.

    PYTHONPATH=tests:docs/examples .venv/bin/python bench/memory.py [--followers 1000] [--rounds 5] [--apart]

Bodies that never end, gzip and zstd bombs, readers that take nothing of large pages and many
followers, all at once and round after round, against the defaults of the settings. With
`--apart` the four services are processes of their own behind nginx, and each has a line.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from support.hostile import MIB, Memory, Numbers, assault
from support.separate_processes import four_processes
from support.server import AllInOne

RECORD_COUNT: Final = 64
STREAM: Final = "memory"


@contextmanager
def running(directory: Path, *, apart: bool) -> Iterator[tuple[str, dict[str, int]]]:
    if apart:
        with four_processes(directory) as deployment:
            yield deployment.url, {name: deployment[name].pid for name in deployment.names}
        return
    with AllInOne(directory / "data") as server:
        yield server.url, {"all in one": server.pid}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--followers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--apart", action="store_true")
    options = parser.parse_args()
    numbers = Numbers(
        bodies=100, bombs=16, slow_readers=60, followers=options.followers, seconds=30
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory), apart=options.apart) as (url, pids),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        client.put(f"/v1/streams/{STREAM}").raise_for_status()
        octets = {"content-type": "application/octet-stream"}
        for _ in range(RECORD_COUNT):
            client.post(
                f"/v1/streams/{STREAM}/records", content=bytes(MIB - 64), headers=octets
            ).raise_for_status()
        memory = Memory(pids)
        show("at rest", memory.now())
        for number in range(options.rounds):
            with memory.sampled() as peak:
                hostile = asyncio.run(assault(url, STREAM, numbers))
            show(f"round {number + 1}, peak", peak)
            show(f"round {number + 1}, after", memory.now())
            print("   ", dict(sorted(hostile.answers.items())), "pages:", hostile.events)


def show(when: str, sizes: dict[str, int]) -> None:
    words = (f"{name} {size / MIB:.0f} MiB" for name, size in sizes.items())
    print(f"{when}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
