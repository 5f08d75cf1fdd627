"""Listing an S3 store in the order of keys, also where the store does not.

AWS lists by key, so one page follows another. Stores over a file system, SeaweedFS
among them, go through their directories instead: `a/b` comes before `a.b`, and what
starts after `a.b` leaves `a/b` out without a word. There every directory is read whole,
one at a time, and sorted here: more calls, but no object is missed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from bottomless.drives.base import DriveRefused
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.object_key import check_object_key

Page: TypeAlias = Callable[..., Awaitable[Mapping[str, Any]]]
"""One call of the store with these arguments, in time and with our errors."""


async def list_by_key(page: Page, root: str, prefix: str, after: str) -> AsyncIterator[ObjectFacts]:
    """Every page starts after the last key seen, so that objects may come and go meanwhile.

    Raises:
        DriveRefused: the store does not list in the order of keys.
    """
    last = after
    if after > prefix and not after.startswith(prefix):
        return
    while True:
        start = {"StartAfter": root + last} if last and last >= prefix else {}
        found = await page(Prefix=root + prefix, **start)
        for item in found.get("Contents", ()):
            object_key = item["Key"].removeprefix(root)
            if object_key <= last:
                raise DriveRefused("the object store does not list in the order of keys")
            last = object_key
            if _ours(object_key):
                yield _facts(object_key, item)
        if not found.get("IsTruncated") or not found.get("Contents"):
            return


async def list_by_directory(
    page: Page, root: str, prefix: str, after: str
) -> AsyncIterator[ObjectFacts]:
    """Directory by directory, each sorted here: in key order whatever the store's order is."""
    waiting: list[Iterator[ObjectFacts | str]] = [
        iter(await _directory(page, root, prefix, after)),
    ]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
        elif isinstance(found, str):
            waiting.append(iter(await _directory(page, root, found, after)))
        else:
            yield found


async def _directory(page: Page, root: str, prefix: str, after: str) -> Sequence[ObjectFacts | str]:
    """Objects, and directories (they end in a slash), that start with `prefix`, in key order."""
    found: dict[str, ObjectFacts | str] = {}
    token: dict[str, str] = {}
    while True:
        answer = await page(Prefix=root + prefix, Delimiter="/", **token)
        for item in answer.get("CommonPrefixes", ()):
            below = item["Prefix"].removeprefix(root)
            if below > after or after.startswith(below):
                found[below] = below
        for item in answer.get("Contents", ()):
            object_key = item["Key"].removeprefix(root)
            if object_key > after and _ours(object_key):
                found[object_key] = _facts(object_key, item)
        if not answer.get("IsTruncated"):
            return [found[name] for name in sorted(found)]
        token = {"ContinuationToken": answer["NextContinuationToken"]}


def _facts(object_key: str, item: Mapping[str, Any]) -> ObjectFacts:
    return ObjectFacts(object_key, item["Size"], int(item["LastModified"].timestamp() * 1000), None)


def _ours(object_key: str) -> bool:
    try:
        check_object_key(object_key)
    except ValueError:
        return False
    return True
