"""Python clients of queues, ours and the peers', one program with one connection each."""

import sys
from typing import Final

from bench.figures import times
from bench.install import peers_python
from bench.rows.clients import client
from bench.rows.queue_sides import ARGUMENTS, CLASSIC, OurSide, RabbitSide
from bench.servers.beanstalkd import running_beanstalkd
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.servers.valkey import running_valkey
from bench.turns import Row, Stage

OURS: Final = "ours"
PIKA: Final = "pika, classic queue"
PIKA_BLOCKING: Final = "pika, classic queue, each confirm waited for"
GREENSTALK: Final = "greenstalk, -f 0"
REDIS: Final = "redis-py, always"
QUEUE: Final = "clients"


def _set_up(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    OurSide(ours).create(QUEUE)
    stage.runners[OURS] = client(sys.executable, "queue_ours.py", ours.tree, [ours.url, QUEUE])
    with stage.side(PIKA):
        python = peers_python()
        rabbit = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = rabbit.version
        for name, way in ((PIKA, "pika"), (PIKA_BLOCKING, "pika-blocking")):
            RabbitSide(rabbit, ARGUMENTS[CLASSIC]).create(way)
            before = [way, str(rabbit.amqp_port), way]
            stage.runners[name] = client(python, "queue_peers.py", rabbit.tree, before)
    with stage.side(REDIS):
        store = stage.stack.enter_context(running_valkey(stage.directory / "valkey", "always"))
        before = ["redis", str(store.port), QUEUE]
        stage.runners[REDIS] = client(peers_python(), "queue_peers.py", store.tree, before)
    with stage.side(GREENSTALK):
        tubes = stage.stack.enter_context(running_beanstalkd(stage.directory / "beanstalkd"))
        stage.versions["beanstalkd"] = tubes.version
        before = ["greenstalk", str(tubes.port), QUEUE]
        stage.runners[GREENSTALK] = client(peers_python(), "queue_peers.py", tubes.tree, before)


ROWS: Final = (
    Row(
        "queues-clients",
        "Queues by Python clients: publish, receive and acknowledge 1 KiB, batches of 100",
        "messages",
        (times("≥ 2 x pika on a classic queue", OURS, PIKA, 2),),
        _set_up,
    ),
)
