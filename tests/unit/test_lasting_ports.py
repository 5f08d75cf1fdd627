"""A port that a test was given is nobody else's, whether or not a server listens there."""

import os
import subprocess
import sys
from typing import Final

from support.ports import lasting_ports, take

ASK: Final = "import sys; from support.ports import take; print(take(int(sys.argv[1])))"


def taken_elsewhere(port: int) -> str:
    """Whether another process gets this port."""
    named = {"PYTHONPATH": ":".join(sys.path)}
    asked = [sys.executable, "-c", ASK, str(port)]
    return subprocess.run(asked, env=named, capture_output=True, text=True, check=True).stdout


def test_no_port_is_given_twice() -> None:
    first, second = lasting_ports(2)
    assert first != second
    assert not take(first)
    assert taken_elsewhere(first) == "False\n"


def test_a_port_is_free_again_once_its_process_has_ended() -> None:
    # No port of a server, and no other process of tests asks for it.
    mine = -os.getpid()
    assert taken_elsewhere(mine) == "True\n"
    assert taken_elsewhere(mine) == "True\n"
