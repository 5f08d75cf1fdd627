"""Ports for servers that die and come back."""

import random
import socket
from contextlib import suppress
from pathlib import Path

from s3_server import PORT_BLOCKS

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From these the kernel gives ports to clients, and to who asks for port 0."""


def lasting_ports(count: int) -> list[int]:
    """Free ports of loopback that nobody gets while their server is away.

    A port that the kernel chose is free again when its server dies, and the next client to
    connect to anything may be given it.
    """
    first, last = (int(word) for word in RANGE.read_text().split())
    # Those below are of S3 servers (docs/examples/s3_server.py).
    candidates = [*range(PORT_BLOCKS.stop, first), *range(last + 1, 65_536)]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    while len(found) < count:
        with suppress(OSError), socket.create_server(("127.0.0.1", candidates.pop())) as bound:
            found.append(bound.getsockname()[1])
    return found
