"""An account of queues: what publishers and workers were told, in plain lists, and what may therefore never be.

Every value is published by one request only, however often that is repeated. A message is known by its
id, a delivery by the number of deliveries that it says. What one ledger was told of a message is told
on by that ledger: a takeover founds another one, whose lists begin empty, and the old ones wait until
its node is the home again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

NO_DEAD_LETTERS: Final = 0
ADDED: Final = frozenset({"queue", "queue-reason", "queue-message-id", "queue-deliveries"})
"""Headers that a message gets when it leaves a queue."""


class Wrong(AssertionError):
    """A promise of docs/queues.md does not hold."""


class QueuePlan(NamedTuple):
    """A queue of a run."""

    name: str
    max_deliveries: int = NO_DEAD_LETTERS
    dead_queue: str | None = None
    dead_stream: str | None = None
    archive: str | None = None
    visibility_ms: int = 2_000
    max_messages: int = 0
    """Beyond this the first ones are dropped; 0: there is no such bound."""

    @property
    def has_dead_letters(self) -> bool:
        """Whether it says where dead letters go."""
        return self.dead_queue is not None or self.dead_stream is not None

    def config(self) -> dict[str, Any]:
        """What is put."""
        config: dict[str, Any] = {"visibility_ms": self.visibility_ms}
        if self.max_deliveries:
            config["max_deliveries"] = self.max_deliveries
        if self.max_messages:
            config |= {"max_messages": self.max_messages, "overflow": "drop-head"}
        if self.dead_queue is not None:
            config["dead_letter"] = {"queue": self.dead_queue}
        if self.dead_stream is not None:
            config["dead_letter"] = {"stream": self.dead_stream}
        if self.archive is not None:
            config["archive"] = {"stream": self.archive}
        return config


class Left(NamedTuple):
    """A message that left its queue and is a record of a stream now."""

    value: str
    queue: str
    reason: str
    message_id: str


def left_as(record: Mapping[str, Any]) -> Left:
    """The message that a record was."""
    headers = record["headers"]
    return Left(
        record["value"], headers["queue"], headers["queue-reason"], headers["queue-message-id"]
    )


def in_queue(told: Mapping[str, Any]) -> dict[str, int]:
    """How many messages are in a queue that is described so, or on their way out of it."""
    return {name: told[name] for name in ("ready", "delayed", "in_flight", "damaged", "outgoing")}


@dataclass
class Message:
    """One message of a queue, as far as anybody was told of it."""

    value: str
    delivered: set[int] = field(default_factory=set)
    """The numbers of its deliveries."""
    asked: set[int] = field(default_factory=set)
    """Of these, the ones that somebody asked to acknowledge, whatever came of it."""
    rejected: set[int] = field(default_factory=set)
    """Those that somebody asked to make a dead letter."""
    acked: int | None = None
    """The delivery whose acknowledgement was answered."""
    reason: str = ""
    """Of a dead letter, why it is one."""


@dataclass
class QueueExpected:
    """One queue in one ledger."""

    plan: QueuePlan
    sent: dict[str, dict[str, Any]]
    """Every value that anybody published anywhere, with all that was sent of it."""
    queue_id: str | None = None
    asked: set[str] = field(default_factory=set)
    """Values that somebody asked to have stored here."""
    stored: dict[str, str] = field(default_factory=dict)
    """Message ids by values: those of which an answer said so."""
    refused: set[str] = field(default_factory=set)
    """Of which every answer said that nothing is stored."""
    messages: dict[str, Message] = field(default_factory=dict)
    """By their ids."""
    over: set[str] = field(default_factory=set)
    """Values that nobody gets who asks from now on, here or where its dead letters go."""
    _ids: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plan.name

    def note_id(self, queue_id: str) -> None:
        """An answer named the queue.

        Raises:
            Wrong: it is another one than before.
        """
        self.queue_id = self.queue_id or queue_id
        if self.queue_id != queue_id:
            raise Wrong(f"{self.name}: was {self.queue_id}, and is {queue_id}")

    def store(self, told: Mapping[str, Any], values: list[str]) -> None:
        """A publish was answered.

        Raises:
            Wrong
        """
        self.note_id(told["queue_id"])
        messages = told["messages"]
        first = messages[0]["sequence"]
        if [one["sequence"] for one in messages] != list(range(first, first + len(values))):
            raise Wrong(f"{self.name}: {len(values)} messages became {messages}")
        for value, one in zip(values, messages, strict=True):
            self.know(value, one["message_id"])
            self.stored[value] = one["message_id"]

    def know(self, value: str, message_id: str) -> Message:
        """A message with this value has this id.

        Raises:
            Wrong: it has another one, too; or nobody published it.
        """
        if value not in self.asked:
            raise Wrong(f"{self.name}: nobody has published {value[:40]}")
        if value in self.refused:
            raise Wrong(f"{self.name}: {value[:40]} was refused, and is stored")
        if self._ids.setdefault(value, message_id) != message_id:
            raise Wrong(f"{self.name}: {value[:40]} is {self._ids[value]} and {message_id}")
        message = self.messages.setdefault(message_id, Message(value))
        if message.value != value:
            raise Wrong(f"{self.name}: {message_id} was {message.value[:40]}, is {value[:40]}")
        return message

    def forget_id(self, value: str) -> None:
        """A message with this value may have another id from now on."""
        self._ids.pop(value, None)

    @property
    def may_be_missing(self) -> bool:
        """Whether it may be deleted at the moment."""
        return False

    def refuse(self, values: Iterable[str]) -> None:
        """Every answer to a publish said that nothing is stored."""
        for value in values:
            if value in self._ids:
                raise Wrong(f"{self.name}: {value[:40]} was refused, and is stored")
            self.refused.add(value)

    def deliver(self, told: Mapping[str, Any]) -> None:
        """Somebody received this.

        Raises:
            Wrong: it is altered, comes back after its acknowledgement, or was delivered to somebody
                else as the same delivery.
        """
        value, number = told["value"], told["deliveries"]
        sent = self.sent.get(value)
        if sent is None:
            raise Wrong(f"{self.name}: nobody sent {value[:40]}")
        headers = {k: v for k, v in told.get("headers", {}).items() if k not in ADDED}
        if (told["priority"], headers) != (sent.get("priority", 0), sent.get("headers", {})):
            raise Wrong(f"{self.name}: {value[:40]} has {told['priority']}, {headers}")
        message = self.know(value, told["message_id"])
        message.reason = told.get("dead_letter", {}).get("reason", "")
        if number in message.delivered:
            raise Wrong(f"{self.name}: delivery {number} of {value[:40]} was made twice")
        message.delivered.add(number)
        most = self.plan.max_deliveries
        # Whoever hung up did not return it: that delivery has a number, and leads to no dead letter.
        if most and len(message.delivered) > most:
            raise Wrong(f"{self.name}: {value[:40]} is delivered more than {most} times: {message}")
        self._check_acked(message)

    def ask_for_ack(self, told: Mapping[str, Any]) -> None:
        """Somebody is about to acknowledge a delivery."""
        self.messages[told["message_id"]].asked.add(told["deliveries"])

    def ask_to_reject(self, told: Mapping[str, Any]) -> None:
        """Somebody is about to make a delivery a dead letter."""
        self.messages[told["message_id"]].rejected.add(told["deliveries"])

    def acked(self, told: Mapping[str, Any]) -> None:
        """An acknowledgement of a delivery was answered as good.

        Raises:
            Wrong: it was not its turn, or it was acknowledged before.
        """
        message = self.messages[told["message_id"]]
        if message.acked is not None:
            raise Wrong(f"{self.name}: {message.value[:40]} was acknowledged twice")
        message.acked = told["deliveries"]
        self.over.add(message.value)
        self._check_acked(message)

    def _check_acked(self, message: Message) -> None:
        if message.acked is not None and max(message.delivered) > message.acked:
            raise Wrong(
                f"{self.name}: {message.value[:40]} comes back after its answered acknowledgement: "
                f"{message.acked} of {sorted(message.delivered)}"
            )

    def describe(self, told: Mapping[str, Any]) -> None:
        """Sums of a description agree with each other.

        Raises:
            Wrong
        """
        there = told["ready"] + told["delayed"] + told["in_flight"] + told["damaged"]
        totals = told["totals"]
        # What expires in a queue of this run becomes a dead letter, and is counted as both.
        left = totals["acked"] + totals["dead_lettered"] + totals["purged"]
        if there != totals["published"] - left:
            raise Wrong(f"{self.name}: {there} messages are there, and the totals say {totals}")
        if told["damaged"]:
            raise Wrong(f"{self.name}: {told['damaged']} messages are damaged")
        if self.plan.max_messages and there > self.plan.max_messages:
            raise Wrong(f"{self.name}: {there} messages are there, beyond its bound")

    def check_ends(
        self,
        totals: Mapping[str, int] | None,
        dead: Mapping[str, str],
        archived: Mapping[str, str],
        loose: Collection[str],
    ) -> None:
        """Everything was stored, worked on and acknowledged: how did each message end?

        `dead` and `archived` are reasons and message ids of what is in the targets, by its values; of
        `loose` ones nobody knows which ledger has them. `totals` are looked at where they are exact.

        Raises:
            Wrong: something is lost, or ended twice, or not as somebody was told.
        """
        for value, message_id in self.stored.items():
            if value in loose:
                continue
            message = self.messages[message_id]
            if message.acked is None and not message.asked and value not in dead:
                raise Wrong(f"{self.name}: {value[:40]} was stored, and is lost: {message}")
            if message.acked is not None and value in dead:
                raise Wrong(f"{self.name}: {value[:40]} was acknowledged, and is a dead letter")
            if self.plan.archive and message.acked is not None and value not in archived:
                raise Wrong(f"{self.name}: {value[:40]} was acknowledged, and not archived")
        for value, reason in dead.items():
            self._check_dead(value, reason)
        for value, message_id in archived.items():
            if not self.know(value, message_id).asked:
                raise Wrong(f"{self.name}: {value[:40]} is archived, and nobody was done with it")
            if value in dead:
                raise Wrong(f"{self.name}: {value[:40]} is archived, and a dead letter")
        if totals is not None:
            self._check_totals(totals, dead)

    def _check_dead(self, value: str, reason: str) -> None:
        message_id = self._ids.get(value)
        message = Message(value) if message_id is None else self.messages[message_id]
        if reason == "rejected" and not message.rejected:
            raise Wrong(f"{self.name}: nobody rejected {value[:40]}")
        if reason == "max-length" and not self.plan.max_messages:
            raise Wrong(f"{self.name}: {value[:40]} was dropped, and there is no bound")
        if reason == "expired" and "ttl_ms" not in self.sent[value]:
            raise Wrong(f"{self.name}: {value[:40]} expired, and nobody asked for that")
        if value not in self.asked or value in self.refused:
            raise Wrong(f"{self.name}: {value[:40]} is a dead letter that nobody published")

    def _check_totals(self, totals: Mapping[str, int], dead: Mapping[str, str]) -> None:
        acked = sum(one.acked is not None for one in self.messages.values())
        perhaps = sum(one.acked is not None or bool(one.asked) for one in self.messages.values())
        if not acked <= totals["acked"] <= perhaps:
            raise Wrong(f"{self.name}: {acked} to {perhaps} are acknowledged, and {totals}")
        if totals["dead_lettered"] != len(dead):
            raise Wrong(f"{self.name}: {len(dead)} dead letters are there, and {totals}")
        ended = totals["acked"] + totals["dead_lettered"]
        if totals["published"] != ended:
            raise Wrong(f"{self.name}: nothing is left, and {totals}")


class QueueAccount:
    """What one ledger was told of its queues."""

    def __init__(
        self,
        plans: Sequence[QueuePlan],
        sent: dict[str, dict[str, Any]] | None = None,
        kinds: Mapping[str, type[QueueExpected]] = {},
    ) -> None:
        """`sent` has every value that anybody published, in whatever ledger; `kinds` the accounts of
        queues that are no plain ones."""
        self.sent = {} if sent is None else sent
        self.queues = {
            plan.name: kinds.get(plan.name, QueueExpected)(plan, self.sent) for plan in plans
        }
        for queue in self.queues.values():
            if queue.plan.dead_queue is not None:
                # What may arrive there is what was asked of the other one.
                self.queues[queue.plan.dead_queue].asked = queue.asked
                self.queues[queue.plan.dead_queue].over = queue.over

    def check_ends(
        self,
        name: str,
        totals: Mapping[str, int] | None,
        letters: Iterable[Left] = (),
        archive: Iterable[Left] = (),
        loose: Collection[str] = (),
    ) -> None:
        """How did each message of a queue end, when nothing is left in it? `letters` and `archive` are
        the streams of its dead letters and of its archive; else as `QueueExpected.check_ends`.

        Raises:
            Wrong
        """
        expected = self.queues[name]
        if expected.plan.dead_queue is not None:
            there = self.queues[expected.plan.dead_queue].messages.values()
            dead = {one.value: one.reason for one in there}
        else:
            dead = {one.value: one.reason for one in letters if one.queue == name}
        dead = {
            value: reason
            for value, reason in dead.items()
            if value in expected.asked and value not in loose
        }
        archived = {
            one.value: one.message_id
            for one in archive
            if one.queue == name and one.value in expected.asked and one.value not in loose
        }
        expected.check_ends(totals, dead, archived, loose)


def once(what: str, values: Iterable[str]) -> None:
    """Raises:
    Wrong: one of them is there twice.
    """
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise Wrong(f"{what}: twice there: {[value[:40] for value in twice[:3]]}")
