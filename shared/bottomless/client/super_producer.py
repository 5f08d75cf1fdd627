"""`AsyncSuperProducer`: records to a super stream, in the order of their keys and once.

A super stream numbers a producer's requests as a whole, and takes the next one only when the one
before it is whole. So nothing is pipelined: one request is under way, and what is handed over
meanwhile gathers for the next. A request that may be stored in part is sent again as it was.
"""

from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Any, Final

from bottomless.client.delivery import AsyncDeliveries, Bundle, Stored
from bottomless.client.encoding import EncodedBody
from bottomless.client.outbox import Identity, Outbox
from bottomless.client.producer import AsyncProducer, Wanted
from bottomless.client.producer_settings import Sending
from bottomless.client.rows import Row, Text
from bottomless.client.super_appends import SuperAppendCalls
from bottomless.client.wire import number_in, understood
from bottomless.errors import Code, Fault, InvalidRequest, Outcome

_KEYLESS: Final = (
    "a record of a super stream must have a key, which says to which partition it goes"
)


class SuperOutbox(Outbox):
    """The sending side of a producer to a super stream: one request at a time."""

    def __init__(self, client: SuperAppendCalls, identity: Identity, sending: Sending) -> None:
        assert sending.in_flight == 1, "the next request is refused until this one is whole"
        super().__init__(client, identity, sending)
        self._super = client
        self._who = identity

    def bodies_of(self, table: Any) -> Iterator[EncodedBody]:
        """Encode a table as the bodies of the appends that send it.

        Raises:
            InvalidRequest: it is no table, has a column that no record has, or a row without a key.
        """
        from bottomless.client.tables import as_table  # noqa: PLC0415

        rows = as_table(table)
        if "key" not in rows.column_names or rows.column("key").null_count:
            raise keyless("/key")
        return super().bodies_of(rows)

    async def append(self, bundle: Bundle, body: bytes, sequence: int) -> Stored:
        """Send a bundle once, whose first record has this number.

        Raises:
            StoreError: it is not stored, or in part, or that is not known.
        """
        return await self._super.append_super_numbered(
            self._who.stream,
            body,
            bundle.media_type,
            producer=self._who.producer_id,
            epoch=self._who.epoch,
            sequence=sequence,
            encoding=bundle.encoding,
            retry_seconds=0,
        )


class AsyncSuperProducer(AsyncProducer):
    """Appends to one super stream; made by `AsyncClient.super_producer`, used with `async with`.

    It is used as a producer to one stream is, and each record must have a key. Records of one key
    are stored in the order of the calls. What is stored is a prefix of the requests, but for the last
    one, which may be stored in some partitions and not in others when the producer ends with an error.
    """

    def __init__(self, client: SuperAppendCalls, wanted: Wanted, sending: Sending) -> None:
        super().__init__(client, wanted, sending)
        self._super = client

    async def start(self) -> None:
        """Find out the producer's identity; `async with` does it.

        Raises:
            StoreError: the server refuses; there is no such super stream, for example.
        """
        assert self._outbox is None, "a producer starts once"
        name, given = self._wanted.stream, self._wanted.producer_id
        producer = f"py-{token_hex(8)}" if given is None else given
        known = await self._super.raise_super_producer_epoch(name, producer)
        with understood(Outcome.UNKNOWN):
            last = known["last_seq"]
            sequence = 0 if last is None else number_in(known, "last_seq") + 1
            self._identity = Identity(name, producer, number_in(known, "epoch"), sequence)
        self._outbox = SuperOutbox(self._super, self._identity, self._sending)

    async def send_many(self, values: Iterable[Text]) -> AsyncDeliveries:
        """Refuse: values alone have no keys; send each with its key, or a table.

        Raises:
            InvalidRequest: always.
        """
        del values
        raise keyless("")

    async def _put(self, row: Row) -> tuple[Bundle, int]:
        check_key(row)
        return await super()._put(row)


def check_key(row: Row) -> None:
    """Check that a record has a key.

    Raises:
        InvalidRequest: it has none.
    """
    if row.extra is None or row.extra.key is None:
        raise keyless("")


def keyless(pointer: str) -> InvalidRequest:
    """Make the error for a record without a key. It is not raised here."""
    fault = Fault(Code.VALIDATION_FAILED, _KEYLESS, pointer=pointer)
    return InvalidRequest(_KEYLESS, code=Code.VALIDATION_FAILED, faults=[fault])
