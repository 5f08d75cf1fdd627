"""The Valkey of our own: its data outlives it, it does not outlive its parent."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.valkey import running_valkey
from support.waiting import until

from bottomless_server.coordination import embedded
from bottomless_server.coordination.base import Changes, CoordinationUnavailable, StoreRun
from bottomless_server.coordination.embedded import EmbeddedValkey
from bottomless_server.coordination.redis import RedisCoordination


async def stored(url: str, value: bytes | None = None) -> bytes | None:
    """Write a value, if there is one, and read it back."""
    coordination = RedisCoordination.connect(url)
    await coordination.check()
    if value is not None:
        await coordination.transact(["a"], lambda _: (Changes({"a": value}), None))
    found = await coordination.get("a")
    await coordination.aclose()
    return found


async def run_of(url: str) -> StoreRun:
    coordination = RedisCoordination.connect(url)
    run = await coordination.run()
    await coordination.aclose()
    return run


async def test_what_was_answered_survives_a_kill_and_a_torn_last_write(tmp_path: Path) -> None:
    with running_valkey(tmp_path) as valkey:
        await stored(valkey.url, b"kept")
        before = await run_of(valkey.url)
        os.kill(valkey.pid, signal.SIGKILL)
        until(lambda: not valkey.running)
        (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
        with log.open("ab") as file:
            file.write(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\nto")

        valkey.start()
        assert await stored(valkey.url) == b"kept"
        assert (await run_of(valkey.url)).run_id != before.run_id


async def test_it_stops_and_starts_again_on_the_same_data(tmp_path: Path) -> None:
    with running_valkey(tmp_path) as valkey:
        await stored(valkey.url, b"kept")
    assert not valkey.running

    with running_valkey(tmp_path) as valkey:
        assert await stored(valkey.url) == b"kept"
    valkey.stop()


async def test_nobody_else_may_use_its_socket(tmp_path: Path) -> None:
    with running_valkey(tmp_path):
        assert stat.S_IMODE((tmp_path / "valkey.sock").stat().st_mode) == 0o700


async def test_a_second_one_on_the_same_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.05)
    with running_valkey(tmp_path) as valkey:
        await stored(valkey.url, b"kept")
        second = EmbeddedValkey(tmp_path)
        with pytest.raises(CoordinationUnavailable, match="another embedded"):
            second.start()

        assert not second.running
        assert await stored(valkey.url) == b"kept"


def test_one_that_cannot_come_up_says_so(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("not a directory")

    with pytest.raises(CoordinationUnavailable, match="ended at its start"):
        EmbeddedValkey(tmp_path).start()


async def test_where_the_path_is_too_long_for_a_socket_a_short_one_is_used(tmp_path: Path) -> None:
    with running_valkey(tmp_path / ("long" * 30)) as valkey:
        assert await stored(valkey.url, b"kept") == b"kept"
        directory = Path(valkey.url.removeprefix("unix://").partition("?")[0]).parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert not directory.is_relative_to(tmp_path)
    assert not directory.exists()


async def test_a_path_with_odd_characters_becomes_a_url_that_works(tmp_path: Path) -> None:
    with running_valkey(tmp_path / "a b?c%20") as valkey:
        assert await stored(valkey.url, b"kept") == b"kept"


CHILD = """
import signal, sys
from pathlib import Path
from bottomless_server.coordination.embedded import EmbeddedValkey

valkey = EmbeddedValkey(Path(sys.argv[1]))
valkey.start()
print(valkey.pid, flush=True)
signal.pause()
"""


def kill_the_parent_of_one(data_dir: Path) -> psutil.Process:
    """Start one in a process that is killed, and return the server, whatever became of it."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child, child.stdout as output:
        server = psutil.Process(int(output.readline()))
        assert server.is_running()
        child.kill()
    return server


async def test_it_dies_with_its_parent_and_gives_its_directory_free(tmp_path: Path) -> None:
    server = kill_the_parent_of_one(tmp_path)
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)

    with running_valkey(tmp_path) as valkey:
        assert await stored(valkey.url, b"mine") == b"mine"


def test_ctrl_c_at_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    with running_valkey(tmp_path) as valkey:
        assert os.getsid(valkey.pid) != os.getsid(0)
