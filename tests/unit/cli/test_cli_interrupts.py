"""A signal ends a program at a moment at which it can say what is done."""

import os
import signal

import pytest

from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.outages import LongWait
from bottomless.cli.produce import interrupted_sentence
from bottomless.cli.sending import Sender
from bottomless.client import Client


@pytest.mark.parametrize(
    ("stored", "pending", "advice"),
    [
        (0, 0, "the same command again begins anew"),
        (0, 2, "look with `bottomless tail` before the same command again"),
        (1, 0, "go on with what comes after the first record of the input"),
        (7, 2, "go on with what comes after the first 7 records of the input"),
    ],
)
def test_a_run_without_numbers_is_never_told_to_resume(
    stored: int, pending: int, advice: str
) -> None:
    with Client("http://127.0.0.1:1") as client:
        sender = Sender(client, "s", LongWait())
        sender.count, sender.pending = stored, pending
        said = interrupted_sentence(sender, 0)
    assert advice in said
    assert "--resume" not in said


def test_what_is_only_waited_for_is_left_at_once() -> None:
    with pytest.raises(Interrupted) as caught, interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 143


def test_a_request_that_is_under_way_is_waited_for() -> None:
    steps = []
    with pytest.raises(Interrupted) as caught, interrupts() as taken:  # noqa: PT012
        with taken.shielded():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("answered")
        steps.append("the next")
    assert (steps, caught.value.exit_code) == (["answered"], 130)


def test_a_second_signal_does_not_wait() -> None:
    steps = []
    with pytest.raises(Interrupted), interrupts() as taken, taken.shielded():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("answered")
    assert steps == []


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interrupts():
        pass
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
