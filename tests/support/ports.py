"""Ports for servers that die and come back."""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from s3_server import PORT_BLOCKS

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From these the kernel gives ports to clients, and to who asks for port 0."""
_TAKEN: Final[list[socket.socket]] = []
"""What this process holds for each port that it was given, up to its end."""


def lasting_ports(count: int) -> list[int]:
    """Free ports of loopback that nobody gets while their server is away.

    A port that the kernel chose is free again when its server dies, and the next client to
    connect to anything may be given it. Other processes of tests look for ports at the same time: what
    is given to one is not given to another, also while no server listens there.
    """
    first, last = (int(word) for word in RANGE.read_text().split())
    # Those below are of S3 servers (docs/examples/s3_server.py).
    candidates = [*range(PORT_BLOCKS.stop, first), *range(last + 1, 65_536)]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    while len(found) < count:
        port = candidates.pop()
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if take(port):
                found.append(port)
    return found


def take(port: int) -> bool:
    """Whether nobody has this port yet, of all processes of tests on this machine; it is this one's then,
    until it ends."""
    name = socket.socket(socket.AF_UNIX)
    try:
        # One without a file, which goes with its process.
        name.bind(f"\0bottomless-test-port-{port}")
    except OSError:
        name.close()
        return False
    _TAKEN.append(name)
    return True
