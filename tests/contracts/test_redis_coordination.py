"""What only a real server behind a connection can show: lost replies, and settings."""

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import AbstractConnection
from simulation.loop import VirtualLoop
from support.reply_eater import ReplyEater, reply_eater
from support.valkey import another_client, command

from bottomless.errors import Outcome
from bottomless_server.coordination import redis_exchanges
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationUnavailable,
    CoordinationUnknown,
    Due,
    Values,
)
from bottomless_server.coordination.redis import RedisCoordination
from bottomless_server.coordination.redis_commands import Command
from bottomless_server.coordination.redis_exchanges import RedisExchanges
from bottomless_server.coordination.silence import Silence
from bottomless_server.manifest.common.held_lease import held_lease

NEVER = 3_600.0
"""Seconds that no test waits for."""


@pytest.fixture
async def direct(valkey_url: str) -> AsyncIterator[RedisCoordination]:
    coordination = RedisCoordination.connect(valkey_url)
    yield coordination
    await coordination.aclose()


@pytest.fixture
async def eater(valkey_url: str, tmp_path: Path) -> AsyncIterator[ReplyEater]:
    server = Path(valkey_url.removeprefix("unix://").removesuffix("?db=0"))
    async with reply_eater(server, tmp_path / "eater.sock") as running:
        yield running


@pytest.fixture
async def through(eater: ReplyEater, tmp_path: Path) -> AsyncIterator[RedisCoordination]:
    coordination = RedisCoordination.connect(f"unix://{tmp_path / 'eater.sock'}?db=0")
    yield coordination
    await coordination.aclose()


async def set_value(coordination: Coordination, value: bytes, **when: bytes) -> None:
    def change(values: Values) -> tuple[Changes, None]:
        assert all(values[key] == wanted for key, wanted in when.items())
        return Changes({"a": value}), None

    await coordination.transact(["a"], change)


async def test_a_lost_reply_to_exec_is_an_unknown_outcome_and_is_not_sent_again(
    eater: ReplyEater, through: RedisCoordination, direct: RedisCoordination
) -> None:
    await set_value(through, b"0")
    calls: list[bytes | None] = []

    def change(values: Values) -> tuple[Changes, None]:
        calls.append(values["a"])
        return Changes({"a": b"1"}), None

    eater.eat()
    with pytest.raises(CoordinationUnknown) as raised:
        await through.transact(["a"], change)

    assert raised.value.outcome is Outcome.UNKNOWN
    assert calls == [b"0"]
    await asyncio.wait_for(eater.answered.wait(), 240)
    assert await direct.get("a") == b"1"
    # The next call has a connection of its own, and no reply of the old one.
    assert await through.get("a") == b"1"


async def test_an_exec_that_arrives_late_is_dead_once_its_key_was_changed(
    eater: ReplyEater, through: RedisCoordination, direct: RedisCoordination
) -> None:
    """The protocol of architecture.md: first make it impossible, then look."""
    await set_value(through, b"version 1")
    eater.deliver.clear()
    eater.eat()
    with pytest.raises(CoordinationUnknown):
        await set_value(through, b"version 2, mine")

    assert await direct.get("a") == b"version 1"  # looking first would decide nothing
    await set_value(direct, b"version 2, bumped", a=b"version 1")
    eater.deliver.set()
    await asyncio.wait_for(eater.answered.wait(), 240)

    assert await direct.get("a") == b"version 2, bumped"


async def test_a_lost_reply_to_a_lease_is_an_unknown_outcome(
    eater: ReplyEater, through: RedisCoordination
) -> None:
    eater.eat()
    with pytest.raises(CoordinationUnknown):
        await through.hold("lease", b"me", 60_000)
    await asyncio.wait_for(eater.answered.wait(), 240)

    assert await through.hold("lease", b"me", 60_000)


async def test_a_server_that_is_silent_after_exec_is_an_unknown_outcome(
    valkey_url: str, direct: RedisCoordination
) -> None:
    impatient = RedisCoordination.connect(valkey_url, answer_seconds=0.2)
    with another_client(valkey_url) as client:

        def change(values: Values) -> tuple[Changes, None]:
            command(client, "CLIENT", "PAUSE", "600000", "WRITE")
            return Changes({"a": b"1"}), None

        async def is_unknown() -> bool:
            try:
                await impatient.transact(["a"], change)
            except CoordinationUnknown:
                return True
            except CoordinationUnavailable:
                # What comes before the EXEC was late, on a machine that does much else: once more.
                return False
            raise AssertionError("an EXEC was answered that the server held back")

        async with asyncio.timeout(240):
            while not await is_unknown():
                pass
        command(client, "CLIENT", "UNPAUSE")
    await impatient.aclose()


@contextlib.asynccontextmanager
async def silent_server(tmp_path: Path) -> AsyncIterator[tuple[RedisCoordination, asyncio.Event]]:
    """A server that takes connections and says nothing; the event tells that one asks it something."""
    connected = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while await reader.read(1 << 16):
                connected.set()

    server = await asyncio.start_unix_server(say_nothing, tmp_path / "silent.sock")
    url = f"unix://{tmp_path / 'silent.sock'}?db=0"
    silent = RedisCoordination.connect(url, answer_seconds=NEVER)
    yield silent, connected
    await silent.aclose()
    server.close()


async def test_who_asks_a_server_that_is_silent_is_told_so_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests waited for 28 seconds while Redis was away: for a new connection, and once more for each
    question."""
    monkeypatch.setattr(redis_exchanges, "FIRST_WORD_SECONDS", 0.05)
    monkeypatch.setattr(redis_exchanges, "CONNECT_SECONDS", NEVER)
    async with silent_server(tmp_path) as (silent, _):
        for call in (silent.get("a"), set_value(silent, b"1"), silent.hold("a", b"1", 1)):
            with pytest.raises(CoordinationUnavailable) as raised:
                await asyncio.wait_for(call, 240)
            assert raised.value.outcome is Outcome.NONE


async def test_a_question_on_a_connection_that_was_good_is_not_waited_for_either(
    tmp_path: Path,
) -> None:
    asked: list[bytes] = []

    async def say_it_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while sent := await reader.read(1 << 16):
                if b"GET" not in sent:
                    writer.write(b"+OK\r\n" * sent.count(b"*"))
                    continue
                asked.append(sent)
                if len(asked) == 1:
                    writer.write(b"$-1\r\n")

    server = await asyncio.start_unix_server(say_it_once, tmp_path / "once.sock")
    url = f"unix://{tmp_path / 'once.sock'}?db=0"
    # It is silent only after the first answer, for which nobody has to hurry.
    once = RedisCoordination.connect(url, answer_seconds=NEVER)
    assert await once.get("a") is None
    with pytest.raises(CoordinationUnavailable) as raised:
        await asyncio.wait_for(once.get("a"), 240)
    assert (raised.value.outcome, len(asked)) == (Outcome.NONE, 2)
    await once.aclose()
    server.close()


def waited(*heard_at: float, has_said: bool = True) -> float:
    """For how long somebody waits, ten seconds at most, who bears a silence of four, and of seven before
    the first word; the store is heard of at these times."""

    async def wait() -> float:
        silence, loop = Silence(4.0, 7.0), asyncio.get_running_loop()
        if has_said:
            silence.hear()
        began = loop.time()
        for at in heard_at:
            loop.call_at(began + at, silence.hear)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10) as ends:
                with silence.ending(ends):
                    await asyncio.Event().wait()
        return loop.time() - began

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(1))) as runner:
        return runner.run(wait())


def test_a_store_that_answers_others_is_waited_for() -> None:
    assert waited() == 4
    assert waited(2) == 6
    assert waited(3, 6, 7) == 10


def test_the_first_word_of_a_store_is_waited_for_longer_than_others() -> None:
    """A server that stood still for five seconds of its start ended: the store did not answer, it said."""
    assert waited(has_said=False) == 7
    assert waited(5, has_said=False) == 9
    assert waited(1, has_said=False) == 7


async def test_hurried_calls_to_a_silent_server_end_also_those_that_wait_already(
    tmp_path: Path,
) -> None:
    """Seed 101 of the chaos run: a stop waited for each lease that it gave up."""
    async with silent_server(tmp_path) as (silent, connected):
        await hurried(silent, connected)


async def hurried(silent: RedisCoordination, connected: asyncio.Event) -> None:
    waiting = asyncio.create_task(silent.get("a"))
    await asyncio.wait_for(connected.wait(), 240)
    silent.hurry(0.1)
    silent.hurry(NEVER)  # the first one counts

    for call in (waiting, silent.get("a"), set_value(silent, b"1"), silent.release("a", b"1")):
        with pytest.raises(CoordinationUnavailable) as raised:
            await asyncio.wait_for(call, 240)
        assert raised.value.outcome is Outcome.NONE


async def test_a_hurried_exec_that_is_not_answered_is_an_unknown_outcome(
    valkey_url: str, direct: RedisCoordination
) -> None:
    waiting = RedisCoordination.connect(valkey_url, answer_seconds=NEVER)
    with another_client(valkey_url) as client:

        def change(values: Values) -> tuple[Changes, None]:
            command(client, "CLIENT", "PAUSE", "600000", "WRITE")
            waiting.hurry(0.1)
            return Changes({"a": b"1"}), None

        with pytest.raises(CoordinationUnknown):
            await asyncio.wait_for(waiting.transact(["a"], change), 240)
        command(client, "CLIENT", "UNPAUSE")
    await waiting.aclose()


async def test_work_under_a_lease_is_stopped_while_coordination_is_silent(valkey_url: str) -> None:
    coordination = RedisCoordination.connect(valkey_url, answer_seconds=NEVER)
    working = asyncio.Event()

    async def work() -> None:
        async with held_lease(coordination, "lease", b"me", 3_600_000) as held:
            assert held
            working.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(working.wait(), 240)
    with another_client(valkey_url) as client:
        command(client, "CLIENT", "PAUSE", "600000", "WRITE")
        coordination.hurry(0.1)
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=240)
        command(client, "CLIENT", "UNPAUSE")

    assert ended
    assert task.cancelled()
    await coordination.aclose()


async def test_a_connection_that_breaks_while_watching_changed_nothing_and_is_no_conflict(
    valkey_url: str, direct: RedisCoordination
) -> None:
    with another_client(valkey_url) as client:

        def change(values: Values) -> tuple[Changes, None]:
            command(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            return Changes({"a": b"1"}), None

        # EXEC may already be on its way into the broken connection, so either is true.
        with pytest.raises((CoordinationUnknown, CoordinationUnavailable)):
            await direct.transact(["a"], change)

    assert await direct.get("a") is None


def test_a_connection_that_was_reset_is_an_error_of_coordination_under_uvloop_too() -> None:
    """Found by a cut network: uvloop has an error of its own for it, which became a 500."""

    async def reset_behind_an_answer() -> None:
        reset = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.read(4096)
            while asked and b"GET" not in asked:
                writer.write(b"+OK\r\n" * asked.count(b"CLIENT"))
                asked = await reader.read(4096)
            writer.write(b"+OK\r\n" * asked.count(b"CLIENT") + b"$-1\r\n")
            await writer.drain()
            # Without a farewell: the kernel then sends a reset.
            end: socket.socket = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0)
            writer.transport.abort()
            reset.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            coordination = RedisCoordination.connect(f"redis://127.0.0.1:{port}/0")
            assert await coordination.get("a") is None
            await asyncio.wait_for(reset.wait(), 30)
            await asyncio.sleep(0.1)
            with contextlib.suppress(CoordinationUnavailable):
                assert await coordination.get("a") is None
            with contextlib.suppress(CoordinationUnavailable, CoordinationUnknown):
                await set_value(coordination, b"1")
            await coordination.aclose()

    uvloop.run(reset_behind_an_answer())


async def test_a_transaction_that_is_cancelled_leaves_no_reply_to_the_next(
    valkey_url: str, direct: RedisCoordination
) -> None:
    await set_value(direct, b"1")
    with another_client(valkey_url) as client:
        command(client, "CLIENT", "PAUSE", "600000", "WRITE")
        task = asyncio.create_task(set_value(direct, b"2"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.1)
        command(client, "CLIENT", "UNPAUSE")

    assert await direct.get("a") in (b"1", b"2")
    await set_value(direct, b"3")
    assert await direct.get("a") == b"3"


async def test_a_cancelled_call_ends_at_whatever_step_it_is(direct: RedisCoordination) -> None:
    """An operation stuck for ever: `asyncio.wait_for`, under which redis-py writes, gave its result
    and dropped the cancellation that came in between. Calls had been cancelled only while they waited
    for a reply, and there none is lost."""

    def change(values: Values) -> tuple[Changes, None]:
        return Changes({"a": b"1"}), None

    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: direct.get("a"),
        lambda: direct.transact(["a"], change),
        lambda: direct.hold("lease", b"me", 60_000),
    ]
    for call in calls:
        for steps in range(30):
            task = asyncio.create_task(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled(), steps


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    nobody = RedisCoordination.connect(f"unix://{tmp_path / 'nobody.sock'}?db=0")
    with pytest.raises(CoordinationUnavailable) as raised:
        await set_value(nobody, b"1")
    with pytest.raises(CoordinationUnavailable):
        await nobody.check()
    await nobody.aclose()

    assert raised.value.outcome is Outcome.NONE
    assert raised.value.retryable


async def test_a_write_that_the_server_refuses_changed_nothing(
    valkey_url: str, direct: RedisCoordination
) -> None:
    with another_client(valkey_url) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(CoordinationUnavailable) as raised:
                await set_value(direct, b"1")
        finally:
            client.config_set("maxmemory", "0")

    assert raised.value.outcome is Outcome.NONE
    assert await direct.get("a") is None


async def test_a_server_whose_settings_may_not_be_read_is_refused(valkey_url: str) -> None:
    with another_client(valkey_url) as client:
        command(client, "ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all", "-config")
    guest = RedisCoordination.connect(valkey_url.replace("unix://", "unix://guest:any@"))
    with pytest.raises(CoordinationUnavailable, match="refused") as raised:
        await guest.check()
    await guest.aclose()

    assert not raised.value.retryable


async def test_members_are_settled_beside_others_that_write_their_queue_without_a_pause(
    valkey_url: str, direct: RedisCoordination
) -> None:
    """It was found by attack: each publish writes into the delete queue, and one of five passes
    of the deleter gave up. The fake has no conflict there, and no test wrote one queue twice at
    once."""
    written = 0

    class Crowded(RedisExchanges):
        async def exchange(
            self, connection: AbstractConnection, commands: Sequence[Command]
        ) -> list[Any]:
            nonlocal written
            written += 1
            other = Due("queue", b"other %d" % written, 7)
            await direct.transact(["a"], lambda _: (Changes(queued=[other]), None))
            return await super().exchange(connection, commands)

    dues = [Due("queue", b"%d" % number, number) for number in range(600)]
    await direct.transact(["a"], lambda _: (Changes(queued=dues), None))
    await direct.transact(["a"], lambda _: (Changes(queued=[dues[3]._replace(due_at=4_000)]), None))
    crowded = RedisCoordination(Crowded.connect(valkey_url))
    await crowded.settle(dues)
    await crowded.aclose()
    left = await direct.due("queue", 9_999, 9_999)
    assert {due.member for due in left if not due.member.startswith(b"other")} == {b"3"}
    assert written == len(left) - 1 > 0


async def test_a_lost_reply_to_settling_is_an_unknown_outcome(
    eater: ReplyEater, through: RedisCoordination, direct: RedisCoordination
) -> None:
    due = Due("queue", b"m", 1)
    await direct.transact(["a"], lambda _: (Changes(queued=[due]), None))
    eater.eat()
    with pytest.raises(CoordinationUnknown):
        await through.settle([due])
    await asyncio.wait_for(eater.answered.wait(), 60)
    assert await direct.due("queue", 9, 9) == []


async def test_a_full_store_still_lets_members_go(
    valkey_url: str, direct: RedisCoordination
) -> None:
    due = Due("queue", b"m", 1)
    await direct.transact(["a"], lambda _: (Changes(queued=[due]), None))
    with another_client(valkey_url) as client:
        client.config_set("maxmemory", "1")
        try:
            await direct.settle([due])
        finally:
            client.config_set("maxmemory", "0")
    assert await direct.due("queue", 9, 9) == []


async def test_a_store_that_refuses_scripts_says_so_and_keeps_the_members(
    valkey_url: str, direct: RedisCoordination
) -> None:
    due = Due("queue", b"m", 1)
    await direct.transact(["a"], lambda _: (Changes(queued=[due]), None))
    with another_client(valkey_url) as client:
        rights = ("on", "nopass", "~*", "+@all", "-@scripting")
        command(client, "ACL", "SETUSER", "unscripted", *rights)
    guest = RedisCoordination.connect(valkey_url.replace("unix://", "unix://unscripted:any@"))
    with pytest.raises(CoordinationUnavailable, match="refused") as raised:
        await guest.settle([due])
    await guest.aclose()
    assert not raised.value.retryable
    assert await direct.due("queue", 9, 9) == [due]


async def test_many_more_calls_than_connections_are_all_served(direct: RedisCoordination) -> None:
    due = Due("queue", b"m", 1)
    await direct.transact(["a"], lambda _: (Changes({"a": b"1"}, [due]), None))

    assert await asyncio.gather(*(direct.get("a") for _ in range(200))) == [b"1"] * 200


@pytest.fixture
def setting(valkey_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """One setting under which answered writes are lost; mended afterwards."""
    name, value = request.param
    with another_client(valkey_url) as client:
        before = client.config_get(name)[name] or ""
        client.config_set(name, value)
        yield name
        client.config_set(name, before)
        # While it writes its first log anew the server refuses to end, and would be killed.
        while any(
            client.info("persistence")[f"aof_rewrite_{state}"]
            for state in ("in_progress", "scheduled")
        ):
            time.sleep(0.01)


@pytest.mark.parametrize(
    "setting",
    [("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")],
    indirect=True,
)
async def test_settings_that_lose_writes_are_refused_by_name_unless_accepted(
    setting: str, valkey_url: str, direct: RedisCoordination
) -> None:
    with pytest.raises(CoordinationUnavailable) as raised:
        await direct.check()
    assert raised.value.facts["setting"] == setting
    assert not raised.value.retryable

    daring = RedisCoordination.connect(valkey_url, accept_unsafe=True)
    await daring.check()
    await daring.aclose()


async def test_who_had_to_connect_anew_can_tell_that_another_server_may_answer(
    direct: RedisCoordination, valkey_url: str
) -> None:
    """A server that ends takes its connections with it, and redis-py may open another one without a
    word; so nothing that a call returns or raises says it for certain."""
    for _ in range(20):
        await direct.get("a")
    before = direct.connected_count
    assert before == 1

    with another_client(valkey_url) as client:
        command(client, "CLIENT", "KILL", "TYPE", "normal")
    # Whoever is the first to use what is broken may be told.
    with contextlib.suppress(CoordinationUnavailable):
        await direct.get("a")
    await direct.get("a")

    assert direct.connected_count > before
