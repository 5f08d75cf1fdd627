"""Calls about super streams as a whole: one large stream made of many, which are its partitions."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from bottomless.client.address import super_path
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import InvalidRequest

_MERGE_PATCH: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a super stream, which is a stream like any other."""

    index: int
    stream: str
    """Its name as a stream."""
    stream_id: str
    binding_key: str | None
    """The key of its records, where the super stream is divided by keys and not by their hashes."""


class SuperStreamCalls(Wire):
    """The calls of `openapi/manifest.yaml` about super streams."""

    async def create_super_stream(
        self,
        name: str,
        *,
        partitions: int | None = None,
        binding_keys: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Create a super stream with its partitions; repeating it unchanged changes nothing.

        With a number of `partitions` the hash of a record's key says where the record goes; with
        `binding_keys` each partition takes the records of one key, and those of other keys are
        refused. `config` is that of each partition, as for `create_stream`.

        Raises:
            InvalidRequest: not exactly one of `partitions` and `binding_keys` is given.
            Exists: `stream-exists`: the name, or that of a partition, is taken.
        """
        path = super_path(name)
        if (partitions is None) is (binding_keys is None):
            raise InvalidRequest("give one of partitions and binding_keys")
        divided: dict[str, Any] = {"partitions": partitions}
        if binding_keys is not None:
            divided = {"binding_keys": list(binding_keys)}
        value = {**(config or {}), **divided}
        return await self._send_json("PUT", path, value, repeatable=True)

    def list_super_streams(
        self, *, unreadable: Callable[[dict[str, Any]], object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List every super stream, in the order of their names; their partitions are streams too.

        `unreadable` is called with the `name`, `super_id` and `code` of each whose record the server
        cannot read.
        """
        return self._list("/v1/super-streams", unreadable=unreadable)

    async def describe_super_stream(self, name: str) -> dict[str, Any]:
        """Describe a super stream and its partitions; `etag` is what a change can name."""
        return members(await self._send("GET", super_path(name)))

    async def update_super_stream(
        self, name: str, patch: Mapping[str, Any], *, etag: str = "*"
    ) -> dict[str, Any]:
        """Change the configuration of all partitions by a merge patch, if its etag is still `etag`.

        The default `*` changes it whatever its etag is.

        Raises:
            WrongOffset: `etag-mismatch`: somebody has changed it meanwhile.
        """
        answer = await self._send(
            "PATCH",
            super_path(name),
            content=orjson.dumps(patch),
            type_sent=_MERGE_PATCH,
            headers={"If-Match": etag},
        )
        return members(answer, changes=True)

    async def grow_super_stream(
        self,
        name: str,
        *,
        partitions: int | None = None,
        binding_keys: Sequence[str] | None = None,
        accept_rehash: bool = False,
        etag: str = "*",
    ) -> dict[str, Any]:
        """Give a super stream more partitions; until all owners have heard of it, it takes no records.

        `partitions` is how many there are then, and goes with `accept_rehash`: most keys go to
        another partition from then on, so that the order of a key holds before and after, and not
        across. `binding_keys` begins with those that there are.

        Raises:
            InvalidRequest: that is not more, or not exactly one of the two is given.
            WrongOffset: `etag-mismatch`: somebody has changed it meanwhile.
        """
        super_path(name)  # A name that is none is refused first.
        if (partitions is None) is (binding_keys is None):
            raise InvalidRequest("give one of partitions and binding_keys")
        if binding_keys is not None:
            return await self.update_super_stream(
                name, {"binding_keys": list(binding_keys)}, etag=etag
            )
        grown = {"partitions": partitions, "accept_rehash": accept_rehash}
        return await self.update_super_stream(name, grown, etag=etag)

    async def delete_super_stream(self, name: str, *, etag: str | None = None) -> dict[str, Any]:
        """Delete a super stream with all its partitions; the operation in the answer removes what is
        left of them.

        Raises:
            WrongOffset: `etag-mismatch`: it is not the configuration that `etag` names any more.
        """
        headers = {} if etag is None else {"If-Match": etag}
        return await self._send_json("DELETE", super_path(name), headers=headers)

    async def route(self, name: str, key: str | bytes) -> Partition | None:
        """Tell to which partition a key goes; None if it has none, by the strategy of binding keys."""
        query = {"key": key} if isinstance(key, str) else {"key_base64": _base64(key)}
        value = members(await self._send("GET", f"{super_path(name)}/route", query))
        with understood():
            return next(map(partition_of, value["partitions"]), None)

    async def partitions(self, name: str) -> list[Partition]:
        """List the partitions of a super stream, in the order of their indexes."""
        value = await self.describe_super_stream(name)
        with understood():
            return [partition_of(one) for one in value["partitions"]]


def partition_of(value: Mapping[str, Any]) -> Partition:
    """Read a partition out of an answer, inside of `understood`."""
    return Partition(
        number_in(value, "index"), value["stream"], value["stream_id"], value["binding_key"]
    )


def _base64(key: bytes) -> str:
    return b64encode(key).decode("ascii")
