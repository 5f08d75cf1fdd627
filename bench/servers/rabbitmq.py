"""RabbitMQ with its stream plugin, one node, unpacked from Debian's packages.

It keeps its defaults. A confirm says that the leader has written, not that it has synced.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.install import rabbitmq
from bench.servers.process import free_port, running
from bench.tree import Tree
from bench.wire.rabbit import Connection

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
stream.listeners.tcp.1 = 127.0.0.1:{stream}
disk_free_limit.absolute = 50MB
"""


@dataclass(frozen=True)
class Node:
    """What a node has besides its defaults."""

    name: str | None = None
    """A directory is of the node of one name; None makes one up."""
    vhosts: tuple[str, ...] = ()
    """Virtual hosts beside the first one, made at its start."""
    advanced: str = "[]."
    """Settings that only Erlang can say."""
    mapper: int | None = None
    """The port of Erlang's port mapper, if one runs that it shares with other nodes."""
    cluster: tuple[str, ...] = ()
    """Names of the nodes of its cluster, itself among them."""


_DEFAULTS = Node()


@dataclass(frozen=True)
class Rabbit:
    port: int
    tree: Tree
    version: str
    amqp_port: int

    def connection(self) -> Connection:
        return Connection(self.port)


@contextmanager
def running_rabbitmq(directory: Path, node: Node = _DEFAULTS) -> Iterator[Rabbit]:
    """Start a node and Erlang's port mapper for it, on ports of their own."""
    root = rabbitmq()
    directory.mkdir(parents=True, exist_ok=True)
    (home,) = root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")
    erlang = root / "usr" / "lib" / "erlang" / "bin"
    mapper, stream, amqp, distribution = (free_port() for _ in range(4))
    configuration = CONFIGURATION.format(amqp=amqp, stream=stream)
    for number, member in enumerate(node.cluster, 1):
        key = "cluster_formation.classic_config.nodes"
        configuration += f"{key}.{number} = {member}@localhost\n"
    if node.vhosts:
        definitions = directory / "definitions.json"
        definitions.write_text(_definitions(node.vhosts))
        configuration += f"load_definitions = {definitions}\n"
    (directory / "rabbitmq.conf").write_text(configuration)
    (directory / "advanced.config").write_text(node.advanced)
    (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    environment = {
        "PATH": f"{erlang}:{os.environ['PATH']}",
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(node.mapper or mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"{node.name or f'bench{stream}'}@localhost",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    log = directory / "console.log"
    cookie = directory / ".erlang.cookie"
    if not cookie.exists():
        # Nodes of a cluster know each other by it.
        cookie.write_text("BENCH")
        cookie.chmod(0o400)
    with ExitStack() as stack:
        if node.mapper is None:
            stack.enter_context(_mapper(erlang, mapper, log))
        server = [home / "sbin" / "rabbitmq-server"]
        process = stack.enter_context(running(server, log, stream, environment))
        found = re.search(r"rabbitmq_server-([0-9.]+)$", home.name)
        yield Rabbit(stream, Tree(process.pid), found[1] if found else "", amqp)


@dataclass(frozen=True)
class RabbitNodes:
    """A cluster; all its connections go to the first node."""

    nodes: tuple[Rabbit, ...]
    tree: Tree

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def connection(self) -> Connection:
        return self.nodes[0].connection()


@contextmanager
def running_rabbitmq_nodes(directory: Path, count: int = 3) -> Iterator[RabbitNodes]:
    """Start nodes that form one cluster: a stream has a replica on each of them."""
    erlang = rabbitmq() / "usr" / "lib" / "erlang" / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    mapper = free_port()
    # Another cluster on this machine has other names.
    names = tuple(f"bench{mapper}-{number}" for number in range(count))
    with ExitStack() as stack:
        stack.enter_context(_mapper(erlang, mapper, directory / "epmd.log"))
        nodes = tuple(
            stack.enter_context(
                running_rabbitmq(directory / name, Node(name, mapper=mapper, cluster=names))
            )
            for name in names
        )
        yield RabbitNodes(nodes, Tree(*(pid for node in nodes for pid in node.tree.pids)))


@contextmanager
def _mapper(erlang: Path, port: int, log: Path) -> Iterator[None]:
    command: list[str | Path] = [erlang / "epmd", "-port", str(port), "-address", "127.0.0.1"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(log.parent)}
    with running(command, log, port, environment):
        yield


def _definitions(vhosts: tuple[str, ...]) -> str:
    """These, and the user whom a node without definitions would make."""
    names = ["/", *vhosts]
    everything = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    return json.dumps(
        {
            "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
            "vhosts": [{"name": name} for name in names],
            "permissions": [{**everything, "vhost": name} for name in names],
        }
    )
