"""How many instructions taking an append needs, counted by callgrind: load moves time, not these.

    valgrind --tool=callgrind --instr-atstart=no python -m bench.instructions FORM RECORDS COUNT

FORM is a content type. Counted is what stands between a body and its validated records, in
user space. Counting is switched on by callgrind's own control program, once everything is
imported and warm.
"""

import asyncio
import os
import subprocess
import sys
from typing import Any

import orjson

from bench.wire import http
from bottomless.model.limits import FRAME_SIZE_MAX
from bottomless_server.ingest.front.forms import read_append, read_form


def _body(content_type: str, records: int) -> bytes:
    if content_type == http.ARROW:
        return http.arrow_body(records)
    if content_type == http.FRAMES:
        return http.frames_body(records)
    return orjson.dumps({"records": [{"value": value.decode()} for value in http.values(records)]})


def _switch(state: str) -> None:
    command = ["callgrind_control", "-i", state, str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def take(content_type: str, records: int, count: int) -> None:
    body = _body(content_type, records)
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "query_string": b""}
    scope |= {"headers": headers, "path": "/v1/streams/s/records"}
    for number in range(count + 3):
        if number == 3:
            _switch("on")
        await read_append(scope, read_form(scope), body, FRAME_SIZE_MAX)
    _switch("off")


def main() -> None:
    content_type, records, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    asyncio.run(take(content_type, records, count))


if __name__ == "__main__":
    main()
