"""A signal ends a program at a moment at which it can say what is done."""

import os
import signal

import pytest

from bottomless.cli.interrupts import Interrupted, interrupts


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
