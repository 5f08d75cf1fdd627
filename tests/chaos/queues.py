"""Queues under the same troubles: publishers and workers, dead letters to another queue and to a stream.

What they are told is held against one account (support/queue_account.py); in the end everything is worked
off, and each message is looked for.
"""

import random
from functools import partial
from typing import Any, Final

from support.queue_account import QueueAccount, QueuePlan
from support.queue_load import QueueLoad

from chaos.deployment import ChaosDeployment
from chaos.ledger import Ledger
from chaos.load import Load, Work, ways_of

LETTERS: Final = "chaos-letters"
ARCHIVE: Final = "chaos-archive"
PLANS: Final = (
    QueuePlan("jobs", 3, dead_queue="dead", visibility_ms=3_000),
    QueuePlan("mails", 2, dead_stream=LETTERS, archive=ARCHIVE, visibility_ms=3_000),
    QueuePlan("dead", visibility_ms=3_000),
)
PAUSE_SECONDS: Final = 0.8
"""Between two requests of a client, at most: each costs a round with its syncs, and threads cost."""
_PUBLISHERS: Final[dict[str, dict[str, Any]]] = {
    "fan": {"queues": ("jobs", "mails"), "keyed": True},
    "plain": {"queues": ("mails",), "keyed": False},
}
_WORKERS: Final = ("jobs", "mails", "dead")


class QueueHistory:
    """What the clients of queues do and were told."""

    def __init__(self, faults: Ledger) -> None:
        """`faults` hears of answers that none may get."""
        self._faults = faults
        self.load = QueueLoad(QueueAccount(PLANS), pause_seconds=PAUSE_SECONDS)

    def create(self, deployment: ChaosDeployment, config: object) -> None:
        """Make the queues, and the streams that are their targets."""
        paths = {f"/v1/streams/{name}": config for name in (LETTERS, ARCHIVE)}
        paths |= {f"/v1/queues/{plan.name}": plan.config() for plan in reversed(PLANS)}
        for path, body in paths.items():
            deployment.retried(lambda client, path=path, body=body: client.put(path, json=body))  # type: ignore[misc]

    def works(self) -> list[Work]:
        """What the clients do, each in a thread of its own."""
        publishing = [partial(self._publish, who) for who in _PUBLISHERS]
        return [*publishing, *(partial(self._consume, queue) for queue in _WORKERS)]

    def _publish(self, who: str, load: Load, chance: random.Random) -> None:
        self._use(load)
        with ways_of(load.deployment) as ways:
            way = partial(chance.choice, ways[:2])
            self.load.publish(way, chance, who, **_PUBLISHERS[who])

    def _consume(self, queue: str, load: Load, chance: random.Random) -> None:
        self._use(load)
        with ways_of(load.deployment) as ways:
            self.load.work(partial(chance.choice, ways[:2]), chance, queue)

    def _use(self, load: Load) -> None:
        self.load.stopping, self.load.finishing = load.stopping, load.finishing
        self.load.refused = partial(load.is_refusal, self._faults)

    @property
    def done_count(self) -> tuple[int, int]:
        """How many messages were stored, and how many acknowledged."""
        return self.load.counts["stored"], self.load.counts["acked"]

    def check(self, deployment: ChaosDeployment) -> None:
        """Work everything off, and look how each message ended. Nothing is in the way any more.

        Raises:
            AssertionError
        """
        with deployment.client() as client:
            self.load.work_off(lambda: client, random.Random(1))
            self.load.check(lambda: client, LETTERS, ARCHIVE)
