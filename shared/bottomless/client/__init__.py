"""Client: how a program talks to Bottomless over HTTP.

The names of this package are loaded when they are first used: Spark's executors need its parts
about answers and the token, and have no library for more.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bottomless.client.aio import AsyncClient
    from bottomless.client.appends import Appended
    from bottomless.client.blocking import Client
    from bottomless.client.blocking_consumer import Consumer
    from bottomless.client.blocking_producer import Producer
    from bottomless.client.blocking_super_consumer import SuperConsumer
    from bottomless.client.blocking_super_producer import SuperProducer
    from bottomless.client.blocking_worker import HeldMessage, Worker
    from bottomless.client.consumer import AsyncConsumer
    from bottomless.client.delivery import (
        Ack,
        Acks,
        AsyncDeliveries,
        AsyncDelivery,
        Deliveries,
        Delivery,
    )
    from bottomless.client.follow import Batch
    from bottomless.client.fragments import Fragment, LeftOut
    from bottomless.client.group import AsyncGroup
    from bottomless.client.message import Message
    from bottomless.client.producer import AsyncProducer
    from bottomless.client.publishing import Published
    from bottomless.client.queues import Redriven
    from bottomless.client.reads import ArrowPage, Offsets, Page
    from bottomless.client.receiving import Peeked, Settled
    from bottomless.client.record import Record
    from bottomless.client.super_appends import StoredPart, SuperAppended
    from bottomless.client.super_consumer import AsyncSuperConsumer
    from bottomless.client.super_producer import AsyncSuperProducer
    from bottomless.client.super_reads import MergedBatch
    from bottomless.client.supers import Partition
    from bottomless.client.transport import Timeouts
    from bottomless.client.worker import AsyncHeldMessage, AsyncWorker

__all__ = [
    "Ack",
    "Acks",
    "Appended",
    "ArrowPage",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncGroup",
    "AsyncHeldMessage",
    "AsyncProducer",
    "AsyncSuperConsumer",
    "AsyncSuperProducer",
    "AsyncWorker",
    "Batch",
    "Client",
    "Consumer",
    "Deliveries",
    "Delivery",
    "Fragment",
    "Group",
    "HeldMessage",
    "LeftOut",
    "MergedBatch",
    "Message",
    "Offsets",
    "Page",
    "Partition",
    "Peeked",
    "Producer",
    "Published",
    "Record",
    "Redriven",
    "Settled",
    "StoredPart",
    "SuperAppended",
    "SuperConsumer",
    "SuperProducer",
    "Timeouts",
    "Worker",
]

_MODULES: Final = {
    "Ack": "delivery",
    "Acks": "delivery",
    "Appended": "appends",
    "ArrowPage": "reads",
    "AsyncClient": "aio",
    "AsyncConsumer": "consumer",
    "AsyncDeliveries": "delivery",
    "AsyncDelivery": "delivery",
    "AsyncGroup": "group",
    "AsyncHeldMessage": "worker",
    "AsyncProducer": "producer",
    "AsyncSuperConsumer": "super_consumer",
    "AsyncSuperProducer": "super_producer",
    "AsyncWorker": "worker",
    "Batch": "follow",
    "Client": "blocking",
    "Consumer": "blocking_consumer",
    "Deliveries": "delivery",
    "Delivery": "delivery",
    "Fragment": "fragments",
    "Group": "blocking_group",
    "HeldMessage": "blocking_worker",
    "LeftOut": "fragments",
    "MergedBatch": "super_reads",
    "Message": "message",
    "Offsets": "reads",
    "Page": "reads",
    "Partition": "supers",
    "Peeked": "receiving",
    "Producer": "blocking_producer",
    "Published": "publishing",
    "Record": "record",
    "Redriven": "queues",
    "Settled": "receiving",
    "StoredPart": "super_appends",
    "SuperAppended": "super_appends",
    "SuperConsumer": "blocking_super_consumer",
    "SuperProducer": "blocking_super_producer",
    "Timeouts": "transport",
    "Worker": "blocking_worker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
