"""`SuperProducer`: what `AsyncSuperProducer` does, for threads."""

from collections.abc import Iterable

from bottomless.client.blocking_producer import Producer
from bottomless.client.delivery import Bundle, Deliveries
from bottomless.client.loop_thread import LoopThread
from bottomless.client.rows import Row, Text
from bottomless.client.super_producer import AsyncSuperProducer, check_key, keyless


class SuperProducer(Producer):
    """Appends to one super stream; made by `Client.super_producer`, used with `with`.

    It is used as a producer to one stream is, and each record must have a key. Records of one key
    are stored in the order of the calls. What is stored is a prefix of the requests, but for the last
    one, which may be stored in some partitions and not in others when the producer ends with an error.
    """

    def __init__(self, inner: AsyncSuperProducer, thread: LoopThread, client: object) -> None:
        super().__init__(inner, thread, client)
        # What has no key goes the other way, where that is noticed.
        self._add_plain = _nowhere

    def send_many(self, values: Iterable[Text]) -> Deliveries:
        """Refuse: values alone have no keys; send each with its key, or a table.

        Raises:
            InvalidRequest: always.
        """
        del values
        raise keyless("")

    def _put(self, row: Row) -> tuple[Bundle, int]:
        check_key(row)
        return super()._put(row)


def _nowhere(value: bytes) -> tuple[Bundle, int] | None:
    del value
    return None
