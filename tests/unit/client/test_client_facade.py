"""`Client`: nothing of its own but a thread, and it says so where that does not work."""

import _thread
import asyncio
import dis
import gc
import inspect
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import Any, get_type_hints

import pytest
from support.raw_server import RawServer, answer, problem, raw_server
from support.strict_ingest import StrictIngest
from support.waiting import until

import bottomless
from bottomless import errors
from bottomless.client import AsyncClient, Client, Consumer, Producer
from bottomless.client.loop_thread import LoopThread
from bottomless.client.transport import Request, fail_without_answer
from bottomless.errors import NotFound, Outcome, Unavailable

PAGE = answer(value={"records": [{"offset": 0}], "next_offset": 1, "up_to_date": True})


@pytest.fixture
def server() -> Iterator[RawServer]:
    """A server on a thread of its own, since here everybody blocks."""
    ready, stop = threading.Event(), asyncio.Event()
    loop, made = asyncio.new_event_loop(), list[RawServer]()

    async def main() -> None:
        async with raw_server(lambda _: PAGE) as running:
            made.append(running)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait()
    yield made[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_each_call_has_its_twin_with_the_same_words() -> None:
    # `follow_tables` is what `consumer(…).tables()` of both is made of.
    assert public(AsyncClient) - {"aclose", "follow_tables"} == public(Client) - {"close"}
    for name in public(Client) - {"close"}:
        mine, theirs = getattr(Client, name), getattr(AsyncClient, name)
        if name == "fragment_bytes":
            continue
        assert mine.__doc__ == theirs.__doc__.replace("Async", "").replace("`async ", "`")
        assert blocking(inspect.signature(mine)) == blocking(inspect.signature(theirs))
        assert "Async" not in str(inspect.signature(mine))


def blocking(signature: inspect.Signature) -> str:
    text = re.sub(r"collections\.abc\.(Async)?Iterator", "Iterator", str(signature))
    return re.sub(r"bottomless\.client\.(blocking_)?(\w+)\.(Async)?", r"\2.", text)


def test_help_of_the_blocking_client_speaks_of_what_it_gives() -> None:
    assert inspect.signature(Client.consumer).return_annotation is Consumer
    assert inspect.signature(Client.producer).return_annotation is Producer
    assert "for `with` and `for`" in (Client.consumer.__doc__ or "")
    assert get_type_hints(Client.consumer)["return"] is Consumer


def test_the_errors_to_catch_are_in_the_package() -> None:
    kinds = {error for error in vars(errors).values() if inspect.isclass(error)}
    wanted = {kind.__name__ for kind in kinds if issubclass(kind, errors.StoreError)}
    assert wanted <= set(bottomless.__all__)
    assert bottomless.OffsetGone is errors.OffsetGone


def test_the_package_shows_both_and_loads_neither_before_it_is_named() -> None:
    assert (bottomless.Client, bottomless.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(AttributeError):
        _ = bottomless.Nothing
    assert not loaded_after("import bottomless.errors") & {"httpx", "aiohttp", "pyarrow"}


def test_what_asks_short_questions_only_loads_what_those_need() -> None:
    made = "from bottomless import Client; Client('http://127.0.0.1:1').close()"
    assert not loaded_after(made) & HEAVY


def test_the_package_alone_loads_nothing_but_its_errors() -> None:
    loaded = loaded_after("import bottomless")
    assert not loaded & (HEAVY | {"asyncio", "orjson", "ssl", "typer"})
    own = {name for name in loaded if name.split(".")[0] == "bottomless"}
    assert own == {"bottomless", "bottomless.errors"}


HEAVY = {"aiohttp", "anyio", "httpcore", "httpx", "numpy", "pyarrow", "pydantic", "rich"}
"""What takes longer to load than a short question to ask and answer."""


def loaded_after(code: str) -> set[str]:
    """Names of the modules that a program has after these lines."""
    program = f"import sys; {code}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    return set(ran.stdout.decode().split())


def test_it_may_be_used_from_many_threads(server: RawServer) -> None:
    with Client(server.url) as client:
        found: list[int] = []

        def work() -> None:
            found.extend(client.read("orders", 0).next_offset for _ in range(10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1] * 40


def test_errors_come_through_as_they_are(server: RawServer) -> None:
    server.script = lambda _: problem(404, "stream-not-found")
    with Client(server.url) as client, pytest.raises(NotFound):
        client.describe("orders")


def test_items_of_a_list_come_when_they_are_asked_for(server: RawServer) -> None:
    server.script = lambda asked: answer(
        value={"items": [{"name": asked.path}], "next_page_token": "more"}
    )
    with Client(server.url) as client:
        items = client.list_streams()
        next(items)
        assert len(server.asked) == 1
        next(items)
        assert len(server.asked) == 2


def test_after_its_end_it_says_so_and_ends_again_without_a_word(server: RawServer) -> None:
    client = Client(server.url)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.read("orders", 0)


def test_who_waits_while_another_thread_closes_is_told(server: RawServer) -> None:
    server.script = lambda _: never()
    client, told = Client(server.url), list[Exception]()

    def wait() -> None:
        try:
            client.append("orders", [{"value": "x"}])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is looked at below
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: server.asked, what="the append")
    client.close()
    waiting.join()
    (error,) = told
    assert isinstance(error, (RuntimeError, Unavailable))
    assert not isinstance(error, Unavailable) or error.outcome is Outcome.UNKNOWN


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def test_one_that_nobody_closed_is_closed_when_nobody_has_it(server: RawServer) -> None:
    client = Client(server.url)
    client.read("orders", 0)
    thread = client._thread
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del client
        gc.collect()
    assert not thread.alive


def test_what_comes_of_a_client_keeps_it_open(server: RawServer) -> None:
    server.script = lambda _: answer(value={"items": [{"name": "orders"}]})
    assert [item["name"] for item in Client(server.url).list_streams()] == ["orders"]

    server.script = StrictIngest()
    producer = Client(server.url).producer("orders")
    gc.collect()
    assert producer.send(b"x").result(60).offset == 0
    producer.close()


def test_records_of_a_producer_that_its_client_outlived_are_told_as_lost(
    server: RawServer,
) -> None:
    server.script = StrictIngest()
    with Client(server.url) as client:
        producer = client.producer("orders", linger_seconds=3600)
        delivery = producer.send(b"x")
    with pytest.raises(Unavailable) as caught:
        delivery.result(60)
    assert caught.value.outcome is Outcome.NONE
    with pytest.raises(RuntimeError, match="closed"):
        producer.send(b"y")


def test_the_last_reference_may_go_on_its_own_thread(server: RawServer) -> None:
    held = [Client(server.url)]
    held[0].read("orders", 0)
    thread = held[0]._thread
    thread.loop.call_soon_threadsafe(held.clear)
    thread._thread.join(60)
    assert not thread._thread.is_alive()


@pytest.mark.parametrize("while_waiting", [True, False])
def test_who_is_interrupted_can_close_what_still_ends(while_waiting: bool) -> None:
    """The items end their own way, which takes longer than asking for their end; also where the
    interruption fell between the asking and the waiting, so that nobody gave it up."""
    thread, asked, ended = LoopThread(), threading.Event(), list[str]()

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            asked.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append("in order")

    given = thread.iterate(items())
    run = thread.run

    def interrupted(work: Any, _: float | None = None) -> Any:
        """As `run` with a Ctrl-C while it waits, the first time."""
        thread.run = run  # type: ignore[method-assign]
        future = asyncio.run_coroutine_threadsafe(work, thread.loop)
        assert asked.wait(60)
        if while_waiting:
            future.cancel()
        raise KeyboardInterrupt

    try:
        next(given)
        thread.run = interrupted  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyboardInterrupt):
            next(given)
        assert ended == ["in order"]
    finally:
        thread.stop()


def test_many_values_wait_for_room_and_stay_in_order(server: RawServer) -> None:
    server.script = ingest = StrictIngest()
    many = [b"%d" % number for number in range(3_000)]
    with Client(server.url) as client:
        options = {"in_flight": 1, "buffer_bytes": 2_000, "batch_bytes": 700}
        with client.producer("orders", **options) as producer:  # type: ignore[arg-type]
            stored = producer.send_many(many).result(60)
            assert producer._buffer.held_max <= 2_000
    assert ingest.values == many
    assert sum(acks.record_count for acks in stored) == len(many)


def test_a_child_of_a_fork_may_not_hand_records_to_its_parents_producer(
    server: RawServer,
) -> None:
    server.script = StrictIngest()
    with Client(server.url) as client, client.producer("orders") as producer:
        read_end, write_end = os.pipe()
        # A thread that is in the middle of handing a record over does not exist in the child.
        with producer._buffer._lock:
            child = os.fork()
            if not child:
                try:
                    producer.send(b"x")
                except RuntimeError as error:
                    os.write(write_end, str(error).encode())
                finally:
                    os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            assert "after a fork" in told.read()
        os.waitpid(child, 0)
        assert producer.send(b"y").result(60).offset == 0


def test_a_child_of_a_fork_is_told_and_the_parent_goes_on(server: RawServer) -> None:
    with Client(server.url) as client:
        client.read("orders", 0)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            try:
                client.read("orders", 0)
            except RuntimeError as error:
                os.write(write_end, str(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        with os.fdopen(read_end) as told:
            assert "after a fork" in told.read()
        assert client.read("orders", 0).next_offset == 1


def test_what_was_interrupted_before_it_was_handed_over_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Ctrl-C as the next item is asked for: Python would complain of what was never awaited."""
    thread, work = LoopThread(), asyncio.sleep(0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "require", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.run(work)
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    finally:
        thread.stop()


def test_what_is_collected_while_a_call_is_handed_over_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Items that nobody has any more are ended by a call of their own, in the middle of another one of
    that thread."""
    thread, ended = LoopThread(), list[str]()

    async def items() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append("in order")

    given = thread.iterate(items())
    next(given)
    hand_over = thread.loop.call_soon_threadsafe

    def collecting(*arguments: Any) -> Any:
        monkeypatch.undo()
        given.close()  # type: ignore[attr-defined]
        return hand_over(*arguments)

    monkeypatch.setattr(thread.loop, "call_soon_threadsafe", collecting)
    answers = list[str]()
    caller = threading.Thread(
        target=lambda: answers.append(thread.run(asyncio.sleep(0, "served"))), daemon=True
    )
    caller.start()
    caller.join(60)
    assert (answers, ended) == (["served"], ["in order"])
    thread.stop()


def test_an_interruption_that_does_not_end_the_wait_is_seen_in_it_soon() -> None:
    """A signal that comes just before the wait in the system's call does not end that. What is simulated
    here ends no wait either."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread, ended = LoopThread(), list[str]()

    async def work() -> None:
        _thread.interrupt_main()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("interrupted")
            raise
        ended.append("by itself")

    try:
        with pytest.raises(KeyboardInterrupt):
            thread.run(work())
        thread.stop()
        assert ended == ["interrupted"]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector does not run: what it ends has callbacks too, which are nobody's call."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_wherever_a_call_is_interrupted_the_next_one_is_served() -> None:
    """A Ctrl-C falls after any call and at any beginning, also within the standard library.

    One that fell while a `Condition` was entered left it locked, and the loop's thread waited for
    it for ever; one that fell into a callback of a weak reference was dropped by Python, and the
    program went on.
    """
    thread = LoopThread()
    for number in itertools.count():
        caller = InterruptedCaller(thread, number)
        caller.start()
        caller.join(60)
        assert not caller.is_alive(), f"after an interruption at place {number} nobody is served"
        assert caller.next_answer == "served"
        if caller.answer == "at once":
            break
    assert number > 10, "the interruptions fell into the call"
    thread.stop()
    assert not thread.alive


class InterruptedCaller(threading.Thread):
    """Calls something that is ready at once, and is interrupted where Python looks for a signal."""

    def __init__(self, thread: LoopThread, number: int) -> None:
        super().__init__(daemon=True)
        self._loop_thread, self._left = thread, number
        self._last: dict[FrameType, int] = {}
        self.answer: str | None = None
        self.next_answer: str | None = None

    def run(self) -> None:
        # Made before: one that is never awaited, since its call was not even entered, is complained of.
        work = asyncio.sleep(0, "at once")
        sys.settrace(self._enter)
        try:
            self.answer = self._loop_thread.run(work)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        self.next_answer = self._loop_thread.run(asyncio.sleep(0, "served"))
        work.close()

    def _enter(self, frame: FrameType, *_: object) -> Any:
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if before is not None and _looks_for_signals(frame.f_code.co_code[before]):
                self._left -= 1
                if self._left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self._step


def _looks_for_signals(opcode: int) -> bool:
    return dis.opname[opcode].startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


def test_a_callback_on_its_own_thread_may_not_wait_for_it() -> None:
    thread = LoopThread()

    async def within() -> None:
        thread.run(asyncio.sleep(0))

    try:
        with pytest.raises(RuntimeError, match="own thread"):
            thread.run(within())
    finally:
        thread.stop()


def test_an_end_cancels_what_runs() -> None:
    thread, cancelled, begun = LoopThread(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    future = asyncio.run_coroutine_threadsafe(work(), thread.loop)
    begun.wait()
    thread.stop()
    assert cancelled.is_set()
    assert future.cancelled()


def test_an_error_shows_the_line_of_the_caller_and_no_way_through_this_package() -> None:
    """What was raised ten frames deep, below two libraries, was ten frames of a traceback."""
    # Bound, and nobody listens: a port that is free again is soon somebody else's.
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    with nobody, Client(url, retry_seconds=0) as client:
        for call in (lambda: client.read("orders", 0), lambda: client.describe("orders")):
            with pytest.raises(Unavailable) as refused:
                call()
            shown = "".join(traceback.format_exception(refused.value))
            assert str(refused.value) == f"nothing listens at {url}"
            assert shown.count("\n  File ") <= 4
            assert "direct cause" not in shown
            assert "another exception occurred" not in shown


def test_an_error_whose_reason_is_not_told_keeps_its_cause() -> None:
    """The guard of the test before: only what the sentence tells already is left out."""
    unheard_of = ValueError("of a kind that nobody foresaw")
    with pytest.raises(Unavailable, match="http://host does not answer") as refused:
        fail_without_answer("http://host", Request("GET", "/"), unheard_of, sent=True)
    assert refused.value.__cause__ is unheard_of
