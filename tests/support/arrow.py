"""Arrow over HTTP, both ways, as any program with Arrow would do it."""

import io

import httpx
import pyarrow as pa

from support.contract import ARROW, Stream


def ipc(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def send_arrow(stream: Stream, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.client.post(
        stream.records, content=body, headers={"content-type": ARROW, **named}
    )


def arrow_of(stream: Stream) -> pa.Table:
    answer = stream.client.get(
        stream.records, params={"offset": "first"}, headers={"accept": ARROW}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return pa.ipc.open_stream(answer.content).read_all()
