"""`Client`: every call, for programs without an event loop.

It is a facade and nothing else: each method waits for the method of the same name of `AsyncClient`,
which runs on a thread of the client's own.
"""

import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import update_wrapper
from inspect import iscoroutinefunction, signature
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, get_args

from bottomless.client.aio import AsyncClient
from bottomless.client.blocking_consumer import Consumer
from bottomless.client.blocking_group import Group
from bottomless.client.blocking_producer import Producer
from bottomless.client.blocking_super_consumer import SuperConsumer
from bottomless.client.blocking_super_producer import SuperProducer
from bottomless.client.blocking_worker import Worker
from bottomless.client.consumer import AsyncConsumer
from bottomless.client.group import AsyncGroup
from bottomless.client.loop_thread import LoopThread
from bottomless.client.producer import AsyncProducer
from bottomless.client.retry import RETRY_SECONDS
from bottomless.client.super_consumer import AsyncSuperConsumer
from bottomless.client.super_producer import AsyncSuperProducer
from bottomless.client.transport import Timeouts
from bottomless.client.worker import AsyncWorker
from bottomless.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")


_WORDS: Final = (
    ("for `async with` and `async for`", "for `with` and `for`"),
    ("`async with`", "`with`"),
    ("`async for`", "`for`"),
    ("AsyncIterator", "Iterator"),
    ("AsyncConsumer", "Consumer"),
    ("AsyncGroup", "Group"),
    ("AsyncProducer", "Producer"),
    ("AsyncSuperConsumer", "SuperConsumer"),
    ("AsyncSuperProducer", "SuperProducer"),
    ("AsyncWorker", "Worker"),
)
"""What a program without a loop calls what one with a loop has."""


def _explain(mine: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    """Give a method the name, the text and the signature of its twin, in its own words."""
    update_wrapper(mine, theirs)
    told = signature(theirs)
    kind = told.return_annotation
    if iscoroutinefunction(theirs):
        blocking = kind
    elif kind in _KINDS:
        blocking = _KINDS[kind]
    else:
        blocking = Iterator[get_args(kind)[0]]  # type: ignore[misc]
    # `help` and notebooks look at these, and not at what a checker of types finds.
    mine.__signature__ = told.replace(return_annotation=blocking)  # type: ignore[attr-defined]
    mine.__annotations__ = {**theirs.__annotations__, "return": blocking}
    for theirs_word, my_word in _WORDS:
        mine.__doc__ = (mine.__doc__ or "").replace(theirs_word, my_word)


_KINDS: Final[dict[Any, Any]] = {
    AsyncConsumer: Consumer,
    AsyncGroup: Group,
    AsyncProducer: Producer,
    AsyncSuperConsumer: SuperConsumer,
    AsyncSuperProducer: SuperProducer,
    AsyncWorker: Worker,
}


def _waits(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Make a method of the asynchronous client one that returns when it is done."""

    def waiting(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    _explain(waiting, method)
    return waiting


def _iterates(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    """Make a method one whose items come when they are asked for."""

    def iterating(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        # Not handed on: the client has to be there for as long as the items come.
        yield from self._thread.iterate(method(self._inner, *args, **kwargs))

    _explain(iterating, method)
    return iterating


def _produces(
    method: Callable[Concatenate[AsyncClient, P], AsyncProducer],
) -> Callable[Concatenate["Client", P], Producer]:
    """Make a method one whose producer has started; for `with`, or until it is closed."""

    def producing(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Producer:
        inner = method(self._inner, *args, **kwargs)
        self._thread.run(inner.start())
        return Producer(inner, self._thread, self)

    _explain(producing, method)
    return producing


def _consumes(
    method: Callable[Concatenate[AsyncClient, P], AsyncConsumer],
) -> Callable[Concatenate["Client", P], Consumer]:
    """Make a method one whose consumer is for `with` and `for`."""

    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Consumer:
        return Consumer(method(self._inner, *args, **kwargs), self._thread, self)

    _explain(consuming, method)
    return consuming


def _produces_super(
    method: Callable[Concatenate[AsyncClient, P], AsyncSuperProducer],
) -> Callable[Concatenate["Client", P], SuperProducer]:
    """Make a method one whose producer to a super stream has started."""

    def producing(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> SuperProducer:
        inner = method(self._inner, *args, **kwargs)
        self._thread.run(inner.start())
        return SuperProducer(inner, self._thread, self)

    _explain(producing, method)
    return producing


def _consumes_super(
    method: Callable[Concatenate[AsyncClient, P], AsyncSuperConsumer],
) -> Callable[Concatenate["Client", P], SuperConsumer]:
    """Make a method one whose consumer of a super stream is for `with` and `for`."""

    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> SuperConsumer:
        return SuperConsumer(method(self._inner, *args, **kwargs), self._thread, self)

    _explain(consuming, method)
    return consuming


def _shares(
    method: Callable[Concatenate[AsyncClient, P], AsyncGroup],
) -> Callable[Concatenate["Client", P], Group]:
    """Make a method one whose member of a group is for `with` and `for`."""

    def sharing(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Group:
        return Group(method(self._inner, *args, **kwargs), self._thread, self)

    _explain(sharing, method)
    return sharing


def _works(
    method: Callable[Concatenate[AsyncClient, P], AsyncWorker],
) -> Callable[Concatenate["Client", P], Worker]:
    """Make a method one whose worker is for `with` and `for`."""

    def working(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Worker:
        return Worker(method(self._inner, *args, **kwargs), self._thread, self)

    _explain(working, method)
    return working


class Client:
    """Talks to one server, or to the proxy in front of several.

    Any number of threads may use it at once. It belongs to one process: after a fork the child
    makes its own. Options and errors are those of `AsyncClient`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeouts: Timeouts | None = None,
        retry_seconds: float = RETRY_SECONDS,
        ca_file: str | Path | None = None,
        on_retry: Callable[[StoreError], None] | None = None,
    ) -> None:
        """Make a client of a server; no request is sent yet. `on_retry` is called in another thread.

        Raises:
            InvalidRequest: that is no url of a server, or no token.
        """
        self._inner = AsyncClient(
            url,
            token=token,
            timeouts=timeouts,
            retry_seconds=retry_seconds,
            ca_file=ca_file,
            on_retry=on_retry,
        )
        self._thread = LoopThread()
        self._end = weakref.finalize(self, _end, self._inner, self._thread)

    def __repr__(self) -> str:
        return repr(self._inner).removeprefix("Async")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and end the thread; calls that are in flight fail."""
        self._end()

    create_stream = _waits(AsyncClient.create_stream)
    list_streams = _iterates(AsyncClient.list_streams)
    describe = _waits(AsyncClient.describe)
    update_stream = _waits(AsyncClient.update_stream)
    fence = _waits(AsyncClient.fence)
    unfence = _waits(AsyncClient.unfence)
    delete_stream = _waits(AsyncClient.delete_stream)

    list_consumers = _iterates(AsyncClient.list_consumers)
    describe_consumer = _waits(AsyncClient.describe_consumer)
    commit = _waits(AsyncClient.commit)
    forget_consumer = _waits(AsyncClient.forget_consumer)

    append = _waits(AsyncClient.append)
    append_raw = _waits(AsyncClient.append_raw)
    append_arrow = _waits(AsyncClient.append_arrow)
    append_body = _waits(AsyncClient.append_body)
    append_numbered = _waits(AsyncClient.append_numbered)
    append_transaction = _waits(AsyncClient.append_transaction)
    raise_producer_epoch = _waits(AsyncClient.raise_producer_epoch)
    list_producers = _iterates(AsyncClient.list_producers)
    describe_producer = _waits(AsyncClient.describe_producer)
    forget_producer = _waits(AsyncClient.forget_producer)

    read = _waits(AsyncClient.read)
    read_arrow = _waits(AsyncClient.read_arrow)
    arrow_pages = _iterates(AsyncClient.arrow_pages)
    follow = _iterates(AsyncClient.follow)
    follow_as_member = _iterates(AsyncClient.follow_as_member)
    resolve = _waits(AsyncClient.resolve)
    bounds = _waits(AsyncClient.bounds)
    offsets = _waits(AsyncClient.offsets)
    wait_until_stored = _waits(AsyncClient.wait_until_stored)

    fragments = _iterates(AsyncClient.fragments)
    fragments_for = _iterates(AsyncClient.fragments_for)
    list_fragments = _iterates(AsyncClient.list_fragments)

    preview_retention = _waits(AsyncClient.preview_retention)
    evaluate_retention = _waits(AsyncClient.evaluate_retention)
    trim = _waits(AsyncClient.trim)
    take_lease = _waits(AsyncClient.take_lease)
    renew_lease = _waits(AsyncClient.renew_lease)
    return_lease = _waits(AsyncClient.return_lease)
    replicas = _waits(AsyncClient.replicas)
    change_owner = _waits(AsyncClient.change_owner)
    add_replica = _waits(AsyncClient.add_replica)
    remove_replica = _waits(AsyncClient.remove_replica)
    list_nodes = _waits(AsyncClient.list_nodes)
    evacuate_node = _waits(AsyncClient.evacuate_node)
    rebalance_nodes = _waits(AsyncClient.rebalance_nodes)
    accept_gap = _waits(AsyncClient.accept_gap)
    manifest = _waits(AsyncClient.manifest)
    verify_manifest = _waits(AsyncClient.verify_manifest)
    collect_garbage = _waits(AsyncClient.collect_garbage)
    rebuild = _waits(AsyncClient.rebuild)
    describe_wal = _waits(AsyncClient.describe_wal)
    list_drives = _waits(AsyncClient.list_drives)
    register_drive = _waits(AsyncClient.register_drive)
    retire_drive = _waits(AsyncClient.retire_drive)
    lose_drive = _waits(AsyncClient.lose_drive)
    tiers = _waits(AsyncClient.tiers)
    preview_tiers = _waits(AsyncClient.preview_tiers)
    evaluate_tiers = _waits(AsyncClient.evaluate_tiers)
    move_fragments = _waits(AsyncClient.move_fragments)
    promote_fragments = _waits(AsyncClient.promote_fragments)
    give_up_move = _waits(AsyncClient.give_up_move)
    queue_store = _waits(AsyncClient.queue_store)
    compact_queue_store = _waits(AsyncClient.compact_queue_store)
    take_over_queues = _waits(AsyncClient.take_over_queues)
    take_over = _waits(AsyncClient.take_over)
    list_operations = _iterates(AsyncClient.list_operations)
    operation = _waits(AsyncClient.operation)
    wait_for_operation = _waits(AsyncClient.wait_for_operation)

    create_key = _waits(AsyncClient.create_key)
    list_keys = _iterates(AsyncClient.list_keys)
    show_key = _waits(AsyncClient.show_key)
    rotate_key = _waits(AsyncClient.rotate_key)
    revoke_key = _waits(AsyncClient.revoke_key)

    limits = _waits(AsyncClient.limits)
    server_version = _waits(AsyncClient.server_version)
    whoami = _waits(AsyncClient.whoami)
    readiness = _waits(AsyncClient.readiness)

    producer = _produces(AsyncClient.producer)
    consumer = _consumes(AsyncClient.consumer)

    create_super_stream = _waits(AsyncClient.create_super_stream)
    list_super_streams = _iterates(AsyncClient.list_super_streams)
    describe_super_stream = _waits(AsyncClient.describe_super_stream)
    update_super_stream = _waits(AsyncClient.update_super_stream)
    grow_super_stream = _waits(AsyncClient.grow_super_stream)
    delete_super_stream = _waits(AsyncClient.delete_super_stream)
    partitions = _waits(AsyncClient.partitions)
    route = _waits(AsyncClient.route)
    super_positions = _waits(AsyncClient.super_positions)
    read_super = _iterates(AsyncClient.read_super)
    follow_super = _iterates(AsyncClient.follow_super)
    append_super = _waits(AsyncClient.append_super)
    append_super_body = _waits(AsyncClient.append_super_body)
    append_super_numbered = _waits(AsyncClient.append_super_numbered)
    raise_super_producer_epoch = _waits(AsyncClient.raise_super_producer_epoch)
    super_producer = _produces_super(AsyncClient.super_producer)
    super_consumer = _consumes_super(AsyncClient.super_consumer)

    list_groups = _iterates(AsyncClient.list_groups)
    describe_group = _waits(AsyncClient.describe_group)
    activate_member = _waits(AsyncClient.activate_member)
    delete_group = _waits(AsyncClient.delete_group)
    join_group = _waits(AsyncClient.join_group)
    send_heartbeat = _waits(AsyncClient.send_heartbeat)
    leave_group = _waits(AsyncClient.leave_group)
    group = _shares(AsyncClient.group)

    create_queue = _waits(AsyncClient.create_queue)
    queues = _iterates(AsyncClient.queues)
    queue = _waits(AsyncClient.queue)
    update_queue = _waits(AsyncClient.update_queue)
    delete_queue = _waits(AsyncClient.delete_queue)
    purge_queue = _waits(AsyncClient.purge_queue)
    redrive = _waits(AsyncClient.redrive)
    publish = _waits(AsyncClient.publish)
    publish_to = _waits(AsyncClient.publish_to)
    publish_raw = _waits(AsyncClient.publish_raw)
    receive = _waits(AsyncClient.receive)
    ack = _waits(AsyncClient.ack)
    nack = _waits(AsyncClient.nack)
    extend = _waits(AsyncClient.extend)
    peek = _waits(AsyncClient.peek)
    worker = _works(AsyncClient.worker)

    @contextmanager
    def fragment_bytes(self, name: str, fragment_id: str) -> Iterator[Iterator[bytes]]:
        """Open the object of one fragment; gives its bytes piece by piece."""
        opening: AbstractAsyncContextManager[AsyncIterator[bytes]]
        opening = self._inner.fragment_bytes(name, fragment_id)
        pieces = self._thread.run(_entered(opening))
        try:
            yield self._thread.iterate(pieces)
        finally:
            self._thread.run(_left(opening))


def _end(inner: AsyncClient, thread: LoopThread) -> None:
    # Also at the end of the program, for a client that nobody closed.
    if thread.alive:
        thread.end_with(inner.aclose())


async def _entered(opening: AbstractAsyncContextManager[T]) -> T:
    return await opening.__aenter__()


async def _left(opening: AbstractAsyncContextManager[Any]) -> None:
    await opening.__aexit__(None, None, None)
