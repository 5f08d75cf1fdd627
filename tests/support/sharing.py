"""What the tests of a module share for as long as none of them fails."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedUntilFailure(Generic[T]):
    """Gives out one thing, and after a failed test another: what that one left fails nobody else.

    Failures are known by how many there were so far (`request.session.testsfailed`), which counts
    tests of other modules too: then one is made that nobody needed, and no verdict changes.
    """

    def __init__(self, begin: Callable[[], AbstractContextManager[T]], failed_count: int) -> None:
        self._begin = begin
        self._failed_count = failed_count
        self._stack = ExitStack()
        self._made: T | None = None

    def get(self, failed_count: int) -> T:
        """The one that is shared; one begun now, where a test has failed since the last call."""
        if self._made is not None and failed_count != self._failed_count:
            print("a test before this one failed: what they share begins anew")
            self._end()
        self._failed_count = failed_count
        if self._made is None:
            self._made = self._stack.enter_context(self._begin())
        return self._made

    def _end(self) -> None:
        """Whatever comes of the end of one that a test broke: the next one is not to blame."""
        self._made = None
        try:
            self._stack.close()
        except Exception as error:  # noqa: BLE001 the failed test has said what was wrong
            print(f"it did not end well: {error!r}")

    def close(self) -> None:
        """Here an end that fails is an error: no test has failed since."""
        self._stack.close()


@contextmanager
def shared_until_failure(
    begin: Callable[[], AbstractContextManager[T]], failed_count: int
) -> Iterator[SharedUntilFailure[T]]:
    shared = SharedUntilFailure(begin, failed_count)
    try:
        yield shared
    finally:
        shared.close()
