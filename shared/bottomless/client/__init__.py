"""Client: how a program talks to Bottomless over HTTP."""

from bottomless.client.aio import AsyncClient
from bottomless.client.appends import Appended
from bottomless.client.blocking import Client
from bottomless.client.blocking_consumer import Consumer
from bottomless.client.blocking_producer import Producer
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
from bottomless.client.fragments import Fragment
from bottomless.client.producer import AsyncProducer
from bottomless.client.reads import ArrowPage, Offsets, Page
from bottomless.client.transport import Timeouts

BottomlessClient = Client
"""Its name before there were two."""

__all__ = [
    "Ack",
    "Acks",
    "Appended",
    "ArrowPage",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncProducer",
    "Batch",
    "BottomlessClient",
    "Client",
    "Consumer",
    "Deliveries",
    "Delivery",
    "Fragment",
    "Offsets",
    "Page",
    "Producer",
    "Timeouts",
]
