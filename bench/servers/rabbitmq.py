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
        "ERL_EPMD_PORT": str(mapper),
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
    with ExitStack() as stack:
        epmd: list[str | Path] = [erlang / "epmd", "-port", str(mapper), "-address", "127.0.0.1"]
        stack.enter_context(running(epmd, log, mapper, environment))
        server = [home / "sbin" / "rabbitmq-server"]
        process = stack.enter_context(running(server, log, stream, environment))
        found = re.search(r"rabbitmq_server-([0-9.]+)$", home.name)
        yield Rabbit(stream, Tree(process.pid), found[1] if found else "", amqp)


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
