"""A real S3 server for tests: SeaweedFS on loopback, over a directory."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from bottomless.coordination.embedded import _die_with_parent
from support.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, s3_client
from support.waiting import until

START_SECONDS = 60
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


@contextmanager
def running_seaweed(directory: Path) -> Iterator[S3Server]:
    """Start one on `directory`; call from the main thread only: the kernel kills it with it."""
    ports = _free_ports()
    users = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [users]}))
    arguments = [
        str(Path(sys.executable).parent / "weed"),
        "-logtostderr",
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        f"-s3.config={directory / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=16",
        "-master.volumeSizeLimitMB=256",
        "-master.telemetry=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
    with (directory / "weed.log").open("w") as log:
        process = subprocess.Popen(
            arguments,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509
        )
    try:
        until(lambda: _answers(server) or process.poll() is not None, START_SECONDS, "seaweedfs")
        assert process.poll() is None, (directory / "weed.log").read_text()[-2000:]
        with s3_client(server) as client:
            client.create_bucket(Bucket=BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _answers(server: S3Server) -> bool:
    try:
        return httpx.get(f"{server.endpoint}/healthz", timeout=5).is_success
    except httpx.TransportError:
        return False


def _free_ports() -> dict[str, int]:
    names = [*PORTS, *(f"{name}.grpc" for name in PORTS)]
    with ExitStack() as held:
        listening = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return dict(zip(names, (one.getsockname()[1] for one in listening), strict=True))
