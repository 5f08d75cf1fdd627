"""A message to ten queues: whether its bytes are written once, and how fast that is."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from bench.figures import Figure, Goal, Sides, times
from bench.pump import SETTLE_SECONDS, HttpLoad, Load, Request
from bench.rows.queue_sides import ARGUMENTS, CLASSIC, OurSide, RabbitSide, Shape
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.tree import Tree
from bench.turns import Row, Runner, Stage
from bench.wire import amqp, queues

LARGE: Final = Shape(size=64 << 10, batch=10)
QUEUE_COUNT: Final = 10
ONE: Final = "ours, one queue"
TEN: Final = "ours, 10 queues"
RABBIT: Final = f"{CLASSIC}, 10 queues"
WRITTEN: Final = "bytes written a message"
EXCHANGE: Final = "fan-out"


def _written(tree: Tree, load: Runner) -> Runner:
    """The same, and what the server has written meanwhile and after it, until it is quiet."""

    def run(seconds: float) -> Figure:
        tree.settle(SETTLE_SECONDS)
        before = tree.written_bytes()
        figure = load(seconds)
        written = (tree.written_bytes() - before) / (figure.units_all or figure.units)
        return replace(figure, extra={**figure.extra, WRITTEN: written})

    return run


def _ours(side: OurSide, count: int) -> Runner:
    def run(seconds: float) -> Figure:
        into = [f"fan-out-{count}-{number}" for number in range(count)]
        for queue in into:
            side.create(queue)
        request = Request(queues.publish_to(into, LARGE.values()), LARGE.batch)
        load = HttpLoad(side.server.port, side.tree, [request], LARGE.connections)
        figure = _written(side.tree, load)(seconds)
        for queue in into:
            side.delete(queue)
        return figure

    return run


def _rabbitmq(side: RabbitSide, into: Sequence[str]) -> Runner:
    port = side.server.amqp_port

    def run(seconds: float) -> Figure:
        for queue in into:
            side.create(queue)
        with closing(amqp.Connection(port)) as one, ExitStack() as stack:
            one.fan_out(EXCHANGE, into)
            opened = [amqp.Connection(port) for _ in range(LARGE.connections)]
            sockets = [stack.enter_context(each.socket) for each in opened]
            request = amqp.publish(LARGE.values(), EXCHANGE, "")
            load = Load("amqp", [request], sockets, LARGE.batch, tree=side.tree)
            figure = _written(side.tree, load.run)(seconds)
        for queue in into:
            side.delete(queue)
        return figure

    return run


def _set_up(stage: Stage) -> None:
    ours = OurSide(stage.stack.enter_context(running_ours(stage.directory / "ours")))
    stage.runners[ONE] = _ours(ours, 1)
    stage.runners[TEN] = _ours(ours, QUEUE_COUNT)
    with stage.side(RABBIT):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        into = [f"fan-out-{number}" for number in range(QUEUE_COUNT)]
        stage.runners[RABBIT] = _rabbitmq(RabbitSide(server, ARGUMENTS[CLASSIC]), into)
    stage.notes.append("A message counts once, however many queues it is in.")


def _times_written(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(TEN, ()), sides.get(ONE, ()), strict=False)
    return [ten.extra[WRITTEN] / one.extra[WRITTEN] for ten, one in pairs] or None


ROWS: Final = (
    Row(
        "queues-fan-out",
        "Queues: publish 64 KiB to 10 queues at once, batches of 10, 8 connections",
        "messages",
        (
            Goal("bytes written ≤ 1.2 x those of one queue", _times_written, at_most=1.2),
            times("≥ 0.5 x a classic queue's fan-out", TEN, RABBIT, 0.5),
        ),
        _set_up,
        touched_bytes=4 << 30,
    ),
)
