"""That tests which share something get another one after a failure: `support/sharing.py`."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.sharing import shared_until_failure


class Begun:
    """Hands out the numbers 1, 2, 3, and notes which of them have ended."""

    def __init__(self) -> None:
        self.count = 0
        self.ended: list[int] = []
        self.fails_to_end = 0

    @contextmanager
    def begin(self) -> Iterator[int]:
        self.count += 1
        number = self.count
        yield number
        self.ended.append(number)
        if number == self.fails_to_end:
            raise RuntimeError("it hangs")


def test_it_is_one_for_all_tests_while_none_fails() -> None:
    begun = Begun()
    with shared_until_failure(begun.begin, 3) as shared:
        assert [shared.get(3), shared.get(3)] == [1, 1]
        assert not begun.ended
    assert begun.ended == [1]


def test_after_a_failure_the_next_test_gets_another_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = Begun()
    begun.fails_to_end = 1
    with shared_until_failure(begun.begin, 0) as shared:
        given = [shared.get(count) for count in (0, 1, 1, 1, 2)]

    assert given == [1, 2, 2, 2, 3]
    assert begun.ended == [1, 2, 3]
    told = capsys.readouterr().out
    assert told.count("failed: what they share begins anew") == 2
    assert told.count("it hangs") == 1


def test_an_end_that_fails_is_an_error_where_no_test_failed() -> None:
    begun = Begun()
    begun.fails_to_end = 1
    with pytest.raises(RuntimeError, match="hangs"), shared_until_failure(begun.begin, 0) as shared:
        shared.get(0)
