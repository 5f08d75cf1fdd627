"""Make a data directory with the server of an earlier commit, for `journeys/test_release_before.py`.

    cd tests; python -m golden.release.make PATH/TO/THAT/COMMIT/.venv/bin/bottomless DIRECTORY

It writes there `data_dir.tar.gz`, as the server left it when it was killed, and `expected.json`, what
the server had answered by then. Both are committed, and made again only for a new release, under
a new name.
"""

import fcntl
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow as pa
from support.waiting import until

from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows

HERE: Final = Path(__file__).parent
ARROW: Final = {"content-type": "application/vnd.apache.arrow.stream"}
SETTINGS: Final = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500"}
FRAMES: Final = {"content-type": "application/vnd.bottomless.batches"}
NAMES: Final = ("orders", "payments", "fresh")
APPENDS: Final[dict[str, dict[str, str]]] = {
    "key": {"idempotency-key": "only-once"},
    "sequence": {"producer-id": "till", "producer-epoch": "0", "producer-seq": "0"},
    "txn": {"producer-id": "nightly", "txn-number": "7"},
}
"""Headers of the appends to `payments`; a later release has to know repeats of the numbered ones."""


def answered(answer: httpx.Response) -> Any:
    assert answer.is_success, (answer.request.url, answer.status_code, answer.text)
    return answer.json()


def table(values: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    columns = pa.table({"value": pa.array(values, pa.large_utf8())})
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_table(columns)
    return bytes(sink.getvalue())


def fill(client: httpx.Client, data_dir: Path) -> dict[str, Any]:
    """Streams in every state: tall, trimmed, only on the disk, deleted; producers and consumers."""
    chance = random.Random(2211)
    small = {"fragment": {"target_bytes": 65536, "max_age_ms": 200}, "retention": {"max_age": "9Y"}}
    answered(client.put("/v1/streams/orders", json=small))
    for at in range(0, 300, 10):
        records = [
            {"json": {"id": one, "pad": f"{chance.getrandbits(800):x}"}, "key": f"k{one % 3}"}
            for one in range(at, at + 10)
        ]
        answered(client.post("/v1/streams/orders/records", json={"records": records}))
        wait_stored(client, "orders")
    answered(client.put("/v1/streams/orders/consumers/billing/offset", json={"offset": 123}))

    answered(client.put("/v1/streams/payments", json=small))
    answers = {
        name: answered(
            client.post(
                "/v1/streams/payments/records",
                headers=headers | {"content-type": "application/octet-stream"},
                content=name,
            )
        )
        for name, headers in APPENDS.items()
    }

    staged = []
    for values in ([b"a", b"b"], [b"c"]):
        body = frames_body(Rows([*values], [0] * len(values)))
        path = "/v1/streams/payments/staged"
        staged.append(answered(client.post(path, headers=FRAMES, content=body))["staged_id"])
    answered(
        client.post(
            "/v1/streams/payments/records",
            headers={
                "producer-id": "spark",
                "txn-number": "1",
                "content-type": "application/vnd.bottomless.staged+json",
            },
            content=json.dumps({"staged": staged}),
        )
    )
    answered(client.put("/v1/streams/gone", json={}))
    answered(client.post("/v1/streams/gone/records", json={"records": [{"value": "x"}]}))
    assert client.delete("/v1/streams/gone").is_success
    answered(client.post("/v1/streams/orders/trim", json={"before_offset": 40}))
    for name in ("orders", "payments"):
        wait_stored(client, name)
        wait_freed(data_dir, answered(client.get(f"/v1/streams/{name}"))["stream_id"])

    answered(client.put("/v1/streams/fresh", json={"fragment": {"max_age_ms": 86_400_000}}))
    body = table([f"fresh {one}" for one in range(20)])
    answered(client.post("/v1/streams/fresh/records", headers=ARROW, content=body))
    return {"answers": answers, "streams": {name: all_of(client, name) for name in NAMES}}


def wait_stored(client: httpx.Client, name: str) -> None:
    """Until object storage has all of it: what is appended next is in another fragment."""

    def stored() -> bool:
        bounds = answered(client.get(f"/v1/streams/{name}/offsets"))
        return bool(bounds["object_store_next_offset"] == bounds["next_offset"])

    until(stored, what=f"the upload of {name}")


def wait_freed(data_dir: Path, stream_id: str) -> None:
    """Until only the newest segment is left, which is never removed."""
    directory = data_dir / "ingest" / "streams" / stream_id
    until(lambda: len([*directory.glob("*.segment")]) == 1, what="the segments to be removed")


def wait_valkey_ended(data_dir: Path) -> None:
    """Valkey ends after its parent, and until then holds the lock that both have."""
    with (data_dir / "valkey" / "valkey.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def all_of(client: httpx.Client, name: str) -> dict[str, Any]:
    records: list[Any] = []
    at: Any = "first"
    while True:
        page = answered(client.get(f"/v1/streams/{name}/records", params={"offset": at}))
        records += page["records"]
        at = page["next_offset"]
        if not page["records"]:
            return {"next_offset": at, "records": records}


def main(program: str, directory: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BOTTOMLESS_")}
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = Path(scratch) / "data"
        with subprocess.Popen(
            [program, "serve", "--data-dir", str(data_dir), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | SETTINGS,
        ) as server:
            assert server.stdout is not None
            ready = next(line for line in server.stdout if line.startswith("ready"))
            with httpx.Client(base_url=ready.split()[1], timeout=30) as client:
                try:
                    expected = fill(client, data_dir)
                finally:
                    server.kill()
        wait_valkey_ended(data_dir)
        (directory / "expected.json").write_text(json.dumps(expected) + "\n")
        with tarfile.open(directory / "data_dir.tar.gz", "w:gz") as packed:
            packed.add(data_dir, "data", filter=plain)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of the machine that it was made on; sockets cannot be packed anyway."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
