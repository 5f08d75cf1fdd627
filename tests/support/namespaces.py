"""Network namespaces: machines of their own on a network that a test can cut, on one machine.

    root namespace ─ bridge ─┬─ veth ─ node 0        10.x.0.1; node n has 10.x.0.(n + 2)
                             └─ veth ─ node 1
                    10.x.(n + 1).1 ─ veth ─ node n   the way of its clients, which is never cut

A cut way is silent, as a broken cable is: nobody hears that a connection has ended. It needs
root and iproute2; `refusal` says what is missing.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

_NAME_BYTES: Final = 4
"""An interface's name has 15 characters at most."""


def refusal() -> str | None:
    """Why there can be none here, None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("bridge") is None:
        return "network namespaces need iproute2"
    name = _new_name()
    tried = _try("ip", "netns", "add", name)
    if tried is None:
        tried = _try("ip", "link", "add", name, "type", "bridge")
        _try("ip", "link", "del", name)
    _try("ip", "netns", "del", name)
    return tried


@dataclass(frozen=True)
class Node:
    """One namespace."""

    name: str
    address: str
    """By which every other process of the deployment reaches it."""
    client_address: str
    """By which its clients do, also while it is cut off."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command line begins with that runs there."""
        return ("ip", "netns", "exec", self.name)

    def cut_off(self) -> None:
        """From everybody but its clients."""
        _run("ip", "link", "set", f"{self.name}n", "down")

    def join(self) -> None:
        _run("ip", "link", "set", f"{self.name}n", "up")


class Network:
    def __init__(self, name: str, prefix: str, node_count: int) -> None:
        self.address = f"{prefix}.0.1"
        """Of the root namespace."""
        self.nodes = [
            Node(f"{name}{number}", f"{prefix}.0.{number + 2}", f"{prefix}.{number + 1}.2")
            for number in range(node_count)
        ]

    def part(self) -> None:
        """No node reaches another one; all of them reach the root namespace."""
        self._isolate("on")

    def join(self) -> None:
        """Undo whatever was done."""
        self._isolate("off")
        for node in self.nodes:
            node.join()

    def _isolate(self, state: str) -> None:
        for node in self.nodes:
            _run("bridge", "link", "set", "dev", f"{node.name}n", "isolated", state)


@contextmanager
def running_network(node_count: int) -> Iterator[Network]:
    """One with so many nodes, where `refusal` has nothing against it."""
    name, chance = _new_name(), random.SystemRandom()
    network = Network(name, f"10.{chance.randrange(64, 250)}", node_count)
    with ExitStack() as made:
        _run("ip", "link", "add", name, "type", "bridge")
        made.callback(_try, "ip", "link", "del", name)
        _run("ip", "addr", "add", f"{network.address}/24", "dev", name)
        _run("ip", "link", "set", name, "up")
        for node in network.nodes:
            _run("ip", "netns", "add", node.name)
            made.callback(_try, "ip", "netns", "del", node.name)
            _run("ip", "-n", node.name, "link", "set", "lo", "up")
            _pair(made, node, "n", node.address)
            _run("ip", "link", "set", f"{node.name}n", "master", name)
            _pair(made, node, "c", node.client_address)
            gate = node.client_address.removesuffix("2") + "1"
            _run("ip", "addr", "add", f"{gate}/24", "dev", f"{node.name}c")
        yield network


def _pair(made: ExitStack, node: Node, kind: str, address: str) -> None:
    here = f"{node.name}{kind}"
    inside = f"eth-{kind}"
    peer = ("peer", "name", inside, "netns", node.name)
    _run("ip", "link", "add", here, "type", "veth", *peer)
    made.callback(_try, "ip", "link", "del", here)
    _run("ip", "link", "set", here, "up")
    _run("ip", "-n", node.name, "addr", "add", f"{address}/24", "dev", inside)
    _run("ip", "-n", node.name, "link", "set", "dev", inside, "up")


def _new_name() -> str:
    return f"bl{random.SystemRandom().randbytes(_NAME_BYTES).hex()}"


def _run(*words: str) -> None:
    failed = _try(*words)
    assert failed is None, failed


def _try(*words: str) -> str | None:
    """None if it went well, else what the command says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{' '.join(words)}: {done.stderr.strip()}"
