"""The ways between three nodes, each of which a test can cut in one direction and not in the other.

A node is reached by a unix socket. Before anybody can know of it, since its way to coordination stands
still, the socket is put elsewhere, and one in its place passes on what comes: by a link of its own for
each node that calls, `first>second` for what the first one asks the second. So nothing needs the
rights that network namespaces need (`namespaces.py`), with which chaos cuts whole machines off.
"""

from pathlib import Path
from typing import Final

from bottomless_server.runtime.listener.listeners import socket_path
from support.links import Trouble
from support.replicated import NODES, ThreeServers
from support.waiting import until

STRANGER: Final = "test"
"""Whoever calls and is none of the nodes."""


def start_apart(nodes: ThreeServers) -> None:
    """Start nodes that were never started, with a link for each way between them. They may not be started
    again: the socket of each is taken."""
    for name in NODES:
        nodes.links.disturb(name, Trouble.STALL)
        nodes[name].spawn()
    for name in NODES:
        _put_between(nodes, name)
    nodes.links.calm()
    nodes.start()


def way(caller: str, called: str) -> str:
    """The name of the link by which one node asks another."""
    return f"{caller}>{called}"


def _put_between(nodes: ThreeServers, called: str) -> None:
    own = socket_path(nodes[called].data_dir.absolute() / "run", "ingest")
    moved = Path(f"{own}.own")
    until(own.exists, what="the socket of a node")
    own.rename(moved)

    def name_of(pid: int) -> str:
        pids = {nodes[name].pid: name for name in NODES if nodes[name].started}
        return way(pids.get(pid, STRANGER), called)

    names = [way(caller, called) for caller in (*NODES, STRANGER)]
    nodes.links.open_by_caller(str(own), str(moved), name_of, names)
