"""Decoders in a process that has no memory left: `python -m support.short_of_memory DIRECTORY`.

The operating system refuses what goes beyond a few MiB more than the process has, as a container's
bound or a busy machine would. Each line that is printed says what a decoder made of it.
"""

import asyncio
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from unit.ingest.harness import ROUTE, IngestHarness, arrow

from bottomless.formats.batch import Codec, decode_message, encode_frame, schema_of, split_frames
from bottomless.model.limits import MIB
from bottomless.model.record import Columns
from bottomless_server.ingest.records.intake import take_arrow
from bottomless_server.runtime.http.encodings import decode_body
from bottomless_server.runtime.observe.telemetry import configure_logs

LARGE: Final = 40 * MIB
"""Beyond what the allocator of the C library keeps for later use."""
LEFT: Final = 8 * MIB


@contextmanager
def little_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + LEFT, resource.RLIM_INFINITY)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def report(name: str, decode: Callable[[], object]) -> None:
    with little_memory():
        try:
            decode()
            met = "enough"
        except Exception as error:  # noqa: BLE001  whatever it is, is the answer
            met = "too little" if isinstance(error, MemoryError) else repr(error)
    print(f"{name}: {met}")


def a_frame(codec: Codec) -> bytes:
    values = pa.array([b"x" * LARGE], pa.binary())
    return encode_frame(
        pa.RecordBatch.from_arrays([values], schema=schema_of(Columns.VALUE)), codec
    )


def a_dictionary(count: int = LARGE // MIB) -> bytes:
    """Records of one value of a MiB, as a body of little more than that."""
    values = pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int32()), pa.array([b"x" * MIB], pa.binary())
    )
    return arrow(pa.table({"value": values}))


async def append(directory: Path) -> str:
    """What a client hears of an append whose body cannot be decoded."""
    harness = await (await IngestHarness(directory).declare()).start()
    headers = {"content-type": "application/vnd.apache.arrow.stream"}

    async def post(body: bytes) -> str:
        answer = await harness.client.post(ROUTE, content=body, headers=headers)
        members = answer.json()
        return f"{answer.status_code} {members.get('code')} {members.get('outcome')}"

    # Threads that it needs have their stacks by then.
    assert (await post(a_dictionary(2))).startswith("200")
    body = a_dictionary()
    with little_memory():
        heard = await post(body)
    assert (await harness.append("small")).status_code == 200, "it does not go on"
    await harness.aclose()
    return heard


def main() -> None:
    configure_logs()
    pa.set_memory_pool(pa.system_memory_pool())
    for codec in (Codec.ZSTD, Codec.LZ4):
        [(header, stored)] = split_frames(memoryview(a_frame(codec)))
        report(f"frame in {codec.name}", partial(decode_message, header, stored, full=True))
    encoded = pa.Codec("zstd").compress(bytes(LARGE), asbytes=True)
    report("body in zstd", lambda: decode_body(encoded, "zstd", LARGE))
    body = a_dictionary()
    report("Arrow body", lambda: take_arrow(body, 8 * MIB))
    print("append:", asyncio.run(append(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
