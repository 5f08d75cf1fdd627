"""Queues: publishes, and messages through their whole life, ours beside five kinds of queues."""

from typing import Final

from bench.figures import at_most, times
from bench.rows.queue_sides import (
    BATCHES,
    CLASSIC,
    OURS,
    QUORUM,
    SINGLES,
    OurSide,
    Side,
    Way,
    add_others,
    add_rabbitmq,
)
from bench.servers.ours import running_ours
from bench.turns import Row, Runner, Stage

GUESS_SECONDS: Final = 300
CONFIRMS: Final = (
    "Ours, quorum queues, JetStream, Valkey and beanstalkd answer after a sync; classic queues after a "
    "write. RabbitMQ and JetStream do not answer acknowledgements. JetStream and beanstalkd sync each "
    "message by itself, and get batches of 10."
)


def _publish(side: Side) -> Runner:
    return side.publishing(BATCHES)


def _work(side: Side) -> Runner:
    return side.working(BATCHES)


def _publish_one(side: Side) -> Runner:
    return side.publishing(SINGLES)


def _work_on_one(side: Side) -> Runner:
    return side.working(SINGLES)


def _all(stage: Stage, way: Way) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    stage.runners[OURS] = way(OurSide(ours))
    add_rabbitmq(stage, way)
    add_others(stage, way)
    stage.notes.append(CONFIRMS)


ROWS: Final = (
    Row(
        "queues-publish",
        "Queues: publish messages of 1 KiB, batches of 100, 8 connections",
        "messages",
        (
            times("≥ 1.5 x a quorum queue", OURS, QUORUM, 1.5),
            times("≥ 0.5 x a classic queue, which does not sync", OURS, CLASSIC, 0.5),
        ),
        lambda stage: _all(stage, _publish),
        guess_seconds=GUESS_SECONDS,
    ),
    Row(
        "queues-work",
        "Queues: publish, receive and acknowledge messages of 1 KiB, batches of 100, 8 connections",
        "messages",
        (
            times("≥ 1 x a quorum queue", OURS, QUORUM, 1),
            times("≥ 0.4 x a classic queue, which does not sync", OURS, CLASSIC, 0.4),
        ),
        lambda stage: _all(stage, _work),
        guess_seconds=GUESS_SECONDS,
    ),
    Row(
        "queues-one",
        "Queues: publish one message of 1 KiB at a time, one connection",
        "messages",
        (
            at_most("p50 ≤ 2 ms", OURS, lambda figure: figure.p50_ms, 2, "ms"),
            at_most("p99 ≤ 10 ms", OURS, lambda figure: figure.p99_ms, 10, "ms"),
        ),
        lambda stage: _all(stage, _publish_one),
        guess_seconds=GUESS_SECONDS,
    ),
    Row(
        "queues-one-life",
        "Queues: publish, receive and acknowledge one message of 1 KiB at a time, one connection",
        "messages",
        (
            at_most("p50 ≤ 5 ms", OURS, lambda figure: figure.p50_ms, 5, "ms"),
            at_most("p99 ≤ 20 ms", OURS, lambda figure: figure.p99_ms, 20, "ms"),
        ),
        lambda stage: _all(stage, _work_on_one),
        guess_seconds=GUESS_SECONDS,
    ),
)
