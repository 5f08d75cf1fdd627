"""The start of a node of queues: let in by manifest, if its directory is the newest copy.

Two copies of a directory are two homes of the same queues. Each start has a random token, which is in
the value of its lease, in its directory, and in what coordination and the bucket say of the newest
start. So of two copies the second one to start is refused: while the first one lives, by the lease;
afterwards, since its directory knows none but earlier tokens.

A process that was killed leaves its lease. Its value names the lock of the directory too: who holds
that very lock now knows that the process has ended, and takes the lease at once. Else it waits until
the lease has run out; if somebody renews it meanwhile, another copy is in use.

The steps, and what a crash leaves after each, are told in manifest/queue_homes/starts.py.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import structlog

from bottomless.errors import Code, Fenced, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.restated import restated
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import NodeLease
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.queue_starts import (
    StartSaid,
    decode_start_said,
    encode_start_asked,
    start_path,
)
from bottomless_server.queues.directory.tokens import Tokens, load_tokens, store_tokens
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.queue_homes import queue_node_key
from bottomless_server.stores.queue_starts import Holder, holder_in, lease_value

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.2
"""Between two looks at a lease that may run out."""


class DirectoryOutdated(Unavailable):
    """The directory of this node is not the newest copy: `not-owner`, outcome none."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "the data directory of this node is older than another copy of it that was started since",
            code=Code.NOT_OWNER,
            retry_after_seconds=30,
        )
        self.reason = reason
        """What an operator is told, with what to do."""


class NodeStart:
    """The start of this process. `let_in` returns once it is the newest of its node."""

    def __init__(
        self,
        files: FileCalls,
        directory: DataDirectory,
        manifest: PeerPort,
        coordination: Coordination,
        url: str,
        wall: Callable[[], int],
    ) -> None:
        """`url` is that of the internal listener, `wall` gives the time in ms since 1970."""
        self._files = files
        self._directory = directory
        self._manifest = manifest
        self._coordination = coordination
        self._url = url
        self._wall = wall
        self._token = os.urandom(16).hex()
        self._term: int | None = None
        """The term of the lease in which it was let in."""
        self._asking: SingleFlight[int, None] = SingleFlight()

    def lease_value(self, node_id: NodeId) -> bytes:
        """What the lease of this start holds."""
        return lease_value(node_id, Holder(self._token, self._directory.lock_id))

    async def make_room(self) -> bool:
        """Give up the lease that a process held which has ended; whether there was one, or none now.

        Raises:
            StoreError: coordination does not answer.
        """
        key = queue_node_key(self._directory.node_id)
        value = await self._coordination.get(key)
        if value is None:
            return True
        if not has_ended(holder_in(value), self._directory.lock_id):
            return False
        await self._coordination.release(key, value)
        return True

    async def wait_for_lease(self, lease: NodeLease) -> None:
        """Return when this start holds the lease of its node, or when coordination does not answer.

        Raises:
            CannotStart: somebody else renews it.
        """
        key = queue_node_key(self._directory.node_id)
        before: tuple[bytes, int] | None = None
        while not lease.is_live():
            try:
                value = await self._coordination.get(key)
                (left,) = await self._coordination.remaining([key])
            except StoreError:
                return
            if value is None or left is None:
                if not await self._took(lease):
                    return
                before = None
                continue
            if before is not None and (value != before[0] or left > before[1]):
                raise CannotStart(self._in_use())
            if before is None:
                log.warning("the lease of this node is held; waiting until it runs out", ms=left)
            before = (value, left)
            await asyncio.sleep(min(_LOOK_SECONDS, left / 1000))
            await lease.renew()

    async def _took(self, lease: NodeLease) -> bool:
        """Try to take a lease that nobody holds; False where it cannot be taken for another reason."""
        await lease.renew()
        if lease.is_live():
            return True
        with suppress(StoreError):
            return await self._coordination.get(queue_node_key(self._directory.node_id)) is not None
        return False

    async def let_in(self, term: int) -> None:
        """Return when this start is the newest of its node, in a term of its lease.

        Raises:
            DirectoryOutdated: another copy of the directory was started later.
            StoreError: manifest does not answer, or cannot tell; the same again is right.
        """
        if self._term != term:
            await self._asking.join(term, lambda: self._let_in(term))

    async def aclose(self) -> None:
        """End what is being asked."""
        await self._asking.aclose()

    async def _let_in(self, term: int) -> None:
        path = self._directory.path
        tokens = load_tokens(self._files, path)
        if self._token not in tokens.known:
            newest = await self._ask(tokens, only_look=True)
            known = () if newest.token is None else (newest.token,)
            # The word of the operator counts until it was heard.
            tokens = Tokens((*known, self._token), tokens.accept_loss)
            store_tokens(self._files, path, tokens)
            await reach("queues.start.after-token")
        said = await self._ask(tokens, only_look=False)
        await reach("queues.start.after-entry")
        if tokens.accept_loss:
            store_tokens(self._files, path, Tokens((self._token,)))
        log.info("this start is the newest of its node", start=said.number)
        self._term = term

    async def _ask(self, tokens: Tokens, *, only_look: bool) -> StartSaid:
        directory = self._directory
        start = QueueStart(
            directory.node_id, 0, self._token, directory.lock_id, self._url, self._wall()
        )
        body = encode_start_asked(
            start, tokens.known, accept_loss=tokens.accept_loss, only_look=only_look
        )
        try:
            answer = await self._manifest.call("POST", start_path(directory.node_id), body=body)
        except Fenced as error:
            outdated = DirectoryOutdated(self._older(error))
            log.critical("the data directory is not the newest copy", reason=outdated.reason)
            raise outdated from error
        except Unavailable as error:
            # Whatever manifest has done of it: of what was asked of this node nothing is done.
            raise restated(error, Outcome.NONE) from error
        return decode_start_said(answer.body)

    def _older(self, error: Fenced) -> str:
        facts = error.facts
        at = facts.get("started_at")
        when = (
            f", at {datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec='seconds')}"
            if isinstance(at, int)
            else ""
        )
        path = self._directory.path
        return (
            f"{path} is not the newest copy of the directory of node {self._directory.node_id}: start "
            f"{facts.get('start')} was on another one, with the address {facts.get('url')}{when}, and "
            "what was confirmed there is not here. Start that one, and remove this one. Only if that "
            "one is lost: `bottomless queue-store new-id --accept-loss` makes this one the newest"
        )

    def _in_use(self) -> str:
        path = self._directory.path
        return (
            f"a copy of {path} is in use: another process renews the lease of node "
            f"{self._directory.node_id}. That copy is the newest one: remove this one, or stop the "
            "other process first. For a node of its own begin with an empty directory"
        )


@guard("the lock that the lease of a node of queues names")
def has_ended(holder: Holder | None, lock_id: str) -> bool:
    """Whether the process that holds a lease has ended, as far as the holder of a lock can tell."""
    return holder is not None and holder.lock == lock_id
