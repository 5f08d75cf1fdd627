"""What the queues service counts of requests; what is in queues the engine counts itself."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from bottomless_server.runtime.observe.metrics import counted


@dataclass(slots=True)
class QueueCounts:
    """Counts requests since the start of the process."""

    forwarded: int = 0
    """Requests that were passed on to another node."""
    forwarded_unanswered: int = 0
    given_back: int = 0
    """Messages that were taken for somebody who could not be answered any more."""

    def metrics(self) -> Iterable[Metric]:
        name = "bottomless_queues"
        yield counted(
            f"{name}_forwarded",
            "Requests that were passed on to the node that has the tenant's queues.",
            self.forwarded,
        )
        yield counted(
            f"{name}_forwarded_unanswered",
            "Those of them that the other node did not answer.",
            self.forwarded_unanswered,
        )
        yield counted(
            f"{name}_given_back",
            "Messages that were taken for somebody who had hung up, or may not have them any more.",
            self.given_back,
        )
