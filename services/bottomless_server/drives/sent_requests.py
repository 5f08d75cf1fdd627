"""Requests that go to an object store, by what a bill calls them.

A call of a drive may be several: a listing has pages, and a large object parts. A drive that sends
requests counts each that it sends, whatever becomes of it.
"""

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

PAGE_COUNT: Final = 1_000
"""Objects of a page of a listing, and of a deletion, as S3 has them."""
_OF_S3: Final = {
    "ListObjectsV2": "list",
    "GetObject": "get",
    "HeadObject": "head",
    "HeadBucket": "head",
    "DeleteObject": "delete",
    "DeleteObjects": "delete",
    "AbortMultipartUpload": "delete",
}
"""The others put something."""


@runtime_checkable
class CountsRequests(Protocol):
    """A drive that tells how many requests it has sent."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests so far, by kind."""
        ...


def kind_of(operation: str) -> str:
    """Tell what a bill calls an operation of S3."""
    return _OF_S3.get(operation, "put")


def page_count(object_count: int) -> int:
    """Tell in how many requests so many objects are listed or deleted; one at least."""
    return max(1, -(-object_count // PAGE_COUNT))
