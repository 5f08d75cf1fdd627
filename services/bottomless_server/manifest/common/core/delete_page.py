"""Decide which due members of the delete queue come next, and when one that failed comes again. Pure.

The queue is one for all streams, in the order of time. Without these two, some hundred members
that nobody can delete (of a stream whose manifest is damaged, of a prefix that the store does
not let go) would be the longest due for ever, and nothing of anybody would be deleted.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")


PUT_OFF_MS_MAX: Final = 3_600_000
"""What is mended is deleted within an hour, and a fault that stays costs one attempt in each."""


def fair_page(dues: Iterable[T], owner: Callable[[T], Hashable], count: int) -> list[T]:
    """At most `count` members: of each owner the first, then of each the second, and so on.

    So no owner fills a page while others wait, and a page is full if there is enough.
    """
    waiting: dict[Hashable, deque[T]] = defaultdict(deque)
    for due in dues:
        waiting[owner(due)].append(due)
    page: list[T] = []
    while waiting and len(page) < count:
        for key in list(waiting):
            page.append(waiting[key].popleft())
            if not waiting[key]:
                del waiting[key]
            if len(page) == count:
                break
    return page


def put_off_until(now: int, failing_since: int, first_ms: int) -> int:
    """When a member that failed is tried again: after as long as it has been failing.

    So its attempts become rarer by half each time, from `first_ms` to an hour, and nothing but
    the time of the first failure has to be remembered.
    """
    longest = max(PUT_OFF_MS_MAX, first_ms)
    return now + min(max(now - failing_since, first_ms), longest)
