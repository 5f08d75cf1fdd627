"""Memory stays within a bound, whatever clients do, and does not grow from one attack to the next."""

import asyncio
import os
from pathlib import Path

import pytest
from support.contract import new_stream
from support.hostile import MIB, Memory, Numbers, assault
from support.server import AllInOne

SETTINGS = {
    "BOTTOMLESS_HTTP_BODY_STALL_SECONDS": "2",
    "BOTTOMLESS_HTTP_SEND_BYTES_MAX": str(32 * MIB),
    "BOTTOMLESS_INGEST_IN_FLIGHT_BYTES_MAX": str(64 * MIB),
    "BOTTOMLESS_INGEST_STREAM_IN_FLIGHT_BYTES_MAX": str(64 * MIB),
    "BOTTOMLESS_READER_CACHE_BYTES": str(32 * MIB),
    "BOTTOMLESS_READER_BLOCK_BYTES": str(MIB),
    "BOTTOMLESS_READER_TAIL_BYTES": str(8 * MIB),
    "BOTTOMLESS_READER_FOLLOWERS_BYTES": str(32 * MIB),
    "BOTTOMLESS_READER_PAGE_COUNT_MAX": "4",
    "BOTTOMLESS_UPLOADER_MEMORY_BYTES": str(32 * MIB),
}
BUDGET = 640 * MIB
"""Above what it takes at rest: the bounds above are 200 MiB, two bodies that are decoded and two
that are parsed some 300, and what the allocator keeps of both."""
GROWTH = 192 * MIB
"""Of later attacks beyond the first two. Peaks of equal attacks were 205 to 487 MiB, by what
happens to be decoded at once; that nothing is kept of what broke off is held by
tests/unit/runtime/test_runtime_get_in_place.py and test_runtime_protocol.py."""
RECORD_COUNT = 24
ATTACKS = int(os.environ.get("BOTTOMLESS_TEST_ATTACKS", "3"))


@pytest.mark.timeout(100 + 100 * ATTACKS)
def test_memory_is_flat_under_attack_and_others_are_served(tmp_path: Path) -> None:
    with AllInOne(tmp_path / "data", SETTINGS) as server, server.client() as client:
        stream = new_stream(client)
        for _ in range(RECORD_COUNT):
            client.post(
                stream.records,
                content=bytes(MIB - 64),
                headers={"content-type": "application/octet-stream"},
            ).raise_for_status()
        memory = Memory({"all in one": server.pid})
        at_rest = memory.now()["all in one"]
        peaks = []
        for _ in range(ATTACKS):
            with memory.sampled() as peak:
                hostile = asyncio.run(
                    assault(server.url, stream.name, Numbers(followers=200, seconds=3))
                )
            peaks.append(peak["all in one"] - at_rest)
            answers = hostile.answers
            assert answers["follow 200"] == 200, answers
            assert answers["follow ended"] == 0, answers
            assert hostile.events >= 200, answers
            assert answers["gzip bomb 413"] == answers["zstd bomb 413"] == 8, answers
            unfinished = {name for name in answers if name.startswith("unfinished")}
            assert unfinished <= {"unfinished 408", "unfinished 503"}, answers
            assert answers["unfinished 408"] >= 1, answers
            assert answers["append 200"] >= 1, answers
            assert answers["read 200"] >= 1, answers

        assert max(peaks) < BUDGET, peaks
        assert max(peaks[2:]) < max(peaks[:2]) + GROWTH, peaks
        print("above rest at the peaks:", [size // MIB for size in peaks], "MiB")
