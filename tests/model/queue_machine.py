"""The engine of queues beside plain lists: steps in any order, and a look at everything after each.

A real engine on a real directory, whose clock the steps move. After each step all that is on its way has
arrived; then each queue is what its list says, message by message, sums and totals too, and rows of
the ledger agree with each other.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from unit.queues.engine_harness import SETTINGS, TENANT, Engine

from bottomless.errors import Code, StoreError, Unavailable
from bottomless.model.queue import (
    parse_queue_config,
    patch_queue_config,
    queue_config_differences,
)
from bottomless.model.record import Content
from bottomless_server.queues.calls import OutMessage, PublishRequest
from bottomless_server.queues.changes.storing import stored_size
from model.queue_lists import Entry, Leaving, Lists, Plan, QueueList

NAMES = ("a", "b", "c", "d")
STREAMS = ("log", "morgue")
DEDUP_COUNT_MAX = 6
RETRY_MS = 2
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"visibility_ms": 1_000, "max_messages": 5},
    {"max_messages": 4, "overflow": "drop-head", "dead_letter": {"queue": "d"}},
    {"max_bytes": 900, "overflow": "drop-head"},
    {"max_deliveries": 2, "dead_letter": {"queue": "c"}, "archive": {"stream": "log"}},
    {"max_deliveries": 1, "dead_letter": {"stream": "morgue"}, "delay_ms": 500},
    {"message_ttl_ms": 2_000, "dead_letter": {"queue": "a"}},
    {"dedup_ms": 0, "message_ttl_ms": 5_000},
)
BEGINNINGS: tuple[dict[str, Any], ...] = (
    {"max_deliveries": 1, "dead_letter": {"queue": "c"}},
    CONFIGS[1],
    CONFIGS[4],
)
"""One queue is of these: a story in which no message comes back says little."""
PATCHES: tuple[dict[str, Any], ...] = (
    *CONFIGS,
    {"dead_letter": None, "max_deliveries": None},
    {"max_messages": None, "max_bytes": None, "delay_ms": 0},
)

_names = st.sampled_from(NAMES)
_times = st.sampled_from([None, 0, 700, 1_500])
_messages = st.lists(
    st.builds(
        OutMessage,
        st.sampled_from([b"", b"v", b"value" * 20, b"long" * 100, b"large" * 200]),
        st.sampled_from([Content.BYTES, Content.TEXT]),
        st.sampled_from([(), (("kind", b"x"),)]),
        st.sampled_from([0, 0, 5, 9]),
        _times,
        st.sampled_from([None, None, 400, 3_000]),
        st.none(),
    ),
    min_size=1,
    max_size=4,
)


STEPS = (
    *["publish"] * 6,
    *["receive"] * 5,
    *["settle"] * 6,
    *["pass_time"] * 2,
    *["tend", "tend", "repeat", "restart", "redrive", "update"],
    *["create", "create", "delete", "purge", "streams_fail", "streams_work"],
)
"""What happens, the frequent more often."""
OF_LIVE = ("receive", "settle", "purge", "redrive", "update")
DRAWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "publish": {
        "names": st.lists(_names, min_size=1, max_size=3, unique=True),
        "messages": _messages,
        "key": st.sampled_from([None, None, None, None, "k1", "k2"]),
        "ids": st.lists(
            st.sampled_from([None, None, None, None, "x", "y", "z"]), min_size=4, max_size=4
        ),
    },
    "receive": {
        "name": _names,
        "limit": st.sampled_from([1, 2, 10]),
        "visibility": st.sampled_from([None, 0, 800]),
        "size_max": st.sampled_from([200, 10_000]),
    },
    "settle": {
        "name": _names,
        "way": st.sampled_from(["ack", "ack", "nack", "nack", "reject", "extend"]),
    },
    "pass_time": {"ms": st.sampled_from([1, 300, 1_000, 5_000, 400_000])},
    "tend": {},
    "repeat": {},
    "restart": {"crash": st.booleans()},
    "redrive": {
        "name": _names,
        "limit": st.sampled_from([1, 100]),
        "to": st.sampled_from([None, *NAMES]),
    },
    "update": {
        "name": _names,
        "patch": st.sampled_from(PATCHES),
        "late": st.sampled_from([False, False, False, True]),
    },
    "create": {"name": _names, "config": st.sampled_from(CONFIGS)},
    "delete": {"name": _names, "if_empty": st.booleans()},
    "purge": {"name": _names},
    "streams_fail": {"late": st.booleans()},
    "streams_work": {},
}


class QueuesBesideLists(RuleBasedStateMachine):
    """An engine, and lists that say what it has to have."""

    steps: ClassVar[int] = 0
    events: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp())
        self.lives = 0
        self.engine = Engine(
            self.root / "0",
            SETTINGS._replace(
                file_bytes_max=3_000,
                dedup_count_max=DEDUP_COUNT_MAX,
                outgoing_retry_ms_min=RETRY_MS,
                outgoing_retry_ms_max=RETRY_MS,
                sweep_count=3,
            ),
        )
        for stream in STREAMS:
            self.engine.streams.create(TENANT, stream)
        self.lists = Lists(DEDUP_COUNT_MAX)
        self.receipts: list[tuple[str, str, bytes, int, int, int]] = []
        """Receipt, queue, its id, its epoch, the sequence, the deliveries."""
        self.last: tuple[list[str], list[OutMessage], str | None] | None = None
        self.sent: dict[str, Counter[bytes]] = {stream: Counter() for stream in STREAMS}
        """Ids of messages that went to streams."""
        self.run(self.engine.open())

    def teardown(self) -> None:
        self.engine.streams.error = None
        self.run(self.engine.close())
        self.loop.close()
        shutil.rmtree(self.root)

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def refusal(self, coroutine: Any) -> Any:
        """What is answered, or the code of what is raised."""
        try:
            return self.run(coroutine)
        except StoreError as error:
            return str(error.code)

    def note(self, what: str) -> None:
        QueuesBesideLists.events[what] += 1

    @property
    def now(self) -> int:
        return self.engine.now

    # Queues

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        self.create("c", CONFIGS[0])
        self.create("a", data.draw(st.sampled_from(BEGINNINGS)))
        for name in ("d", "b"):
            self.create(name, data.draw(st.sampled_from(CONFIGS)))

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        # One rule for all: Hypothesis would leave some of several rules out of a whole story.
        what = data.draw(st.sampled_from(STEPS))
        of_step = {name: data.draw(each) for name, each in DRAWN[what].items()}
        if what == "settle":
            of_step["data"] = data
        # What is asked of a queue that is not there says little: one in ten is enough.
        if data.draw(st.integers(0, 9)) and self.lists.queues:
            live = st.sampled_from(sorted(self.lists.queues))
            if what == "publish":
                there = [each for each in of_step["names"] if each in self.lists.queues]
                of_step["names"] = there or [data.draw(live)]
            elif what in OF_LIVE and of_step["name"] not in self.lists.queues:
                of_step["name"] = data.draw(live)
        getattr(self, what)(**of_step)

    def create(self, name: str, config: dict[str, Any]) -> None:
        wanted = parse_queue_config(config)
        there = self.lists.queues.get(name)
        answer = self.refusal(self.engine.engine.create_queue(TENANT, name, wanted))
        if there is not None:
            if queue_config_differences(there.config, wanted):
                assert answer == "queue-exists"
            else:
                assert not answer.created
                assert answer.queue.queue_id == there.queue_id
        elif self.closes_circle(name, wanted):
            assert answer == "validation-failed"
            self.note("a circle was refused")
        else:
            assert answer.created
            self.lists.queues[name] = QueueList(name, answer.queue.queue_id, wanted)

    def closes_circle(self, name: str, config: Any) -> bool:
        seen: list[str] = []
        target = config.dead_letter and config.dead_letter.queue
        while target is not None and target not in seen:
            if target == name:
                return True
            seen.append(target)
            queue = self.lists.queues.get(target)
            target = queue and queue.config.dead_letter and queue.config.dead_letter.queue
        return False

    def update(self, name: str, patch: dict[str, Any], late: bool) -> None:
        queue = self.lists.queues.get(name)
        if queue is None:
            return
        answer = self.refusal(
            self.engine.engine.update_queue(
                TENANT, name, patch, queue_id=queue.queue_id, version=queue.version - late
            )
        )
        if late:
            assert answer == "etag-mismatch"
            return
        try:
            config = patch_queue_config(queue.config, patch)
        except StoreError:
            assert answer == "validation-failed"
            return
        if queue_config_differences(queue.config, config):
            if self.closes_circle(name, config):
                assert answer == "validation-failed"
                return
            queue.config = config
            queue.version += 1
            self.note("a configuration was changed")
        assert answer.version == queue.version

    def delete(self, name: str, if_empty: bool) -> None:
        queue = self.lists.queues.get(name)
        answer = self.refusal(self.engine.engine.delete_queue(TENANT, name, if_empty=if_empty))
        if queue is None:
            assert answer == "queue-not-found"
        elif if_empty and queue.entries:
            assert answer == "queue-not-empty"
        elif any(
            each.config.dead_letter and each.config.dead_letter.queue == name
            for each in self.lists.queues.values()
        ):
            assert answer == "queue-in-use"
            self.note("a queue in use was kept")
        else:
            assert answer is None
            del self.lists.queues[name]
            self.note("a queue was deleted")

    # Messages

    def publish(
        self, names: list[str], messages: list[OutMessage], key: str | None, ids: list[str | None]
    ) -> None:
        if key is None:
            messages = [
                one._replace(dedup_id=dedup_id)
                for one, dedup_id in zip(messages, ids, strict=False)
            ]
        self.send(names, messages, key)

    def repeat(self) -> None:
        """The last publish comes again."""
        if self.last is not None:
            self.send(*self.last)

    def send(self, names: list[str], messages: list[OutMessage], key: str | None) -> None:
        self.last = (names, messages, key)
        body = repr(messages)
        request = PublishRequest(TENANT, names, messages, "me", key, body.encode())
        plan = self.lists.publish(names, messages, key, repr((sorted(names), body)))
        answer = self.refusal(self.engine.engine.publish(request))
        if isinstance(plan, str):
            assert answer == plan
            self.note(f"a publish was refused: {plan}")
            return
        assert not isinstance(answer, str), answer
        self.check_answer(plan, answer)
        told = {
            each.queue: [(one.message_id, one.sequence) for one in each.messages]
            for each in answer.queues
        }
        self.lists.published(plan, told, self.now)
        if len(names) > 1:
            self.note("a message was in several queues")

    def check_answer(self, plan: Plan, answer: Any) -> None:
        for each in answer.queues:
            for number, one in enumerate(each.messages):
                assert one.duplicate is not plan.is_new(each.queue, number)
                if (each.queue, number) in plan.known:
                    assert (one.message_id, one.sequence) == plan.known[each.queue, number]
                    self.note("a repeat was told what the first one was told")

    def receive(self, name: str, limit: int, visibility: int | None, size_max: int) -> None:
        queue = self.lists.queues.get(name)
        answer = self.refusal(
            self.engine.receive(name, limit=limit, visibility_ms=visibility, bytes_max=size_max)
        )
        if queue is None:
            assert answer == "queue-not-found"
            return
        taken = self.lists.receive(queue, limit, size_max, visibility, self.now)
        assert [
            (
                each.message_id,
                each.sequence,
                bytes(each.value),
                tuple(each.headers),
                each.deliveries,
            )
            for each in answer
        ] == [
            (each.message_id, each.sequence, each.value, each.headers, each.deliveries)
            for each in taken
        ]
        for each in answer:
            facts = (name, queue.queue_id, queue.epoch, each.sequence, each.deliveries)
            self.receipts.append((each.receipt, *facts))
        if visibility == 0:
            # It is over at once: the engine sees that by itself.
            self.run(self.engine.pass_time(0))
            self.lists.pass_time(self.now)

    def settle(self, name: str, data: Any, way: str) -> None:
        queue = self.lists.queues.get(name)
        if queue is None or not self.receipts:
            return
        # The last ones, of this queue most often: the others are of no use to it.
        mine = [each for each in self.receipts if each[1] == name][-12:] or self.receipts[-3:]
        chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=4, unique=True))
        receipts = [each[0] for each in chosen]
        delay = data.draw(st.sampled_from([0, 600]))
        engine = self.engine.engine
        calls = {
            "ack": lambda: engine.ack(TENANT, name, receipts),
            "nack": lambda: engine.nack(TENANT, name, receipts, delay_ms=delay),
            "reject": lambda: engine.nack(TENANT, name, receipts, dead_letter=True),
            "extend": lambda: engine.extend(TENANT, name, receipts, 900),
        }
        answer = self.run(calls[way]())
        gone, stale, good = [], [], []
        for receipt, _, queue_id, epoch, sequence, deliveries in chosen:
            entry = queue.at(sequence)
            if (queue_id, epoch) != (queue.queue_id, queue.epoch) or entry is None:
                gone.append(receipt)
            elif entry.deliveries != deliveries:
                stale.append(receipt)
            else:
                good.append(entry)
        assert (answer.done, list(answer.gone), list(answer.stale)) == (len(good), gone, stale)
        if stale:
            self.note("a receipt was stale")
        for entry in good:
            self.settled(queue, entry, way, delay)

    def settled(self, queue: QueueList, entry: Entry, way: str, delay: int) -> None:
        if way == "ack":
            self.lists.leave(queue, entry, "acknowledged")
        elif way == "nack":
            self.lists.back(queue, entry, self.now, delay)
        elif way == "reject":
            self.lists.leave(queue, entry, "rejected")
        else:
            entry.state, entry.due_at = "in-flight", self.now + 900

    def purge(self, name: str) -> None:
        queue = self.lists.queues.get(name)
        if queue is None:
            return
        assert self.run(self.engine.engine.purge(TENANT, name)) == len(queue.entries)
        queue.totals.purged += len(queue.entries)
        queue.entries.clear()
        queue.epoch += 1

    def redrive(self, name: str, limit: int, to: str | None) -> None:
        queue = self.lists.queues.get(name)
        if queue is None or to == name:
            return
        answer = self.refusal(self.engine.engine.redrive(TENANT, name, limit=limit, to=to))
        moved: list[tuple[Entry, QueueList]] = []
        missing = False
        for entry in [each for each in queue.entries if each.state == "ready"]:
            target = to or entry.origin
            if target is None or len(moved) == limit:
                continue
            if target not in self.lists.queues:
                missing = True
            else:
                moved.append((entry, self.lists.queues[target]))
        if missing and not moved:
            assert answer == "queue-not-found"
            return
        for entry, _ in moved:
            queue.entries.remove(entry)
        assert (answer.moved, answer.left) == (len(moved), queue.count("ready"))
        for entry, target_queue in moved:
            self.anew(target_queue, entry, None)
            self.note("a dead letter was redriven")

    def anew(self, queue: QueueList, entry: Entry, leaving: Leaving | None) -> None:
        """A message is published anew in a queue; its id is read from there."""
        headers = [each for each in entry.headers if not each[0].startswith("queue")]
        if leaving is not None:
            headers += [
                ("queue", leaving.queue.encode()),
                ("queue-reason", leaving.reason.encode()),
                ("queue-message-id", entry.message_id.hex().encode()),
                ("queue-deliveries", b"%d" % entry.deliveries),
            ]
        (there,) = self.run(
            self.engine.engine.peek(TENANT, queue.name, after=queue.next_sequence - 1, limit=1)
        ).messages
        one = OutMessage(entry.value, Content.BYTES, tuple(headers), entry.priority)
        size = stored_size(headers, len(entry.value), 1, checksum=True)
        origin = None if leaving is None else leaving.queue
        self.lists.enter(queue, there.message_id, one, size, self.now, origin)

    # Time and trouble

    def pass_time(self, ms: int) -> None:
        self.run(self.engine.pass_time(ms))
        self.lists.pass_time(self.now)

    def restart(self, crash: bool) -> None:
        before = self.engine.directory
        if crash:
            # What a death leaves is what lies on the disk now: nothing is under way.
            self.lives += 1
            self.engine.directory = self.root / str(self.lives)
            shutil.copytree(before, self.engine.directory)
            self.note("a process died")
        self.run(self.engine.close())
        self.run(self.engine.open())
        report = self.engine.engine.start_report
        assert (report.lost, report.damaged_count) == ((), 0)
        if crash:
            shutil.rmtree(before)

    def tend(self) -> None:
        while self.run(self.engine.engine.tend()):
            pass
        figures = self.run(self.engine.engine.storage())
        assert figures.disk_bytes <= 2 * figures.live_bytes + 3 * 3_000
        if figures.moved_bytes:
            self.note("a file was compacted")

    def streams_fail(self, late: bool) -> None:
        self.engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
        self.engine.streams.late = late

    def streams_work(self) -> None:
        if self.engine.streams.error is not None:
            self.note("a stream was in trouble")
        self.engine.streams.error = None

    # What has to be so

    @invariant()
    def everything_is_as_the_lists_say(self) -> None:
        QueuesBesideLists.steps += 1
        self.run(self.all_arrived())
        self.arrive()
        for name, queue in self.lists.queues.items():
            self.check_queue(name, queue)
        assert self.run(self.engine.engine.check()) == []

    async def all_arrived(self) -> None:
        """Wait until nothing is on its way to where it can arrive."""
        while True:
            on_its_way = [
                each
                for each in (await self.engine.engine.storage()).outgoing
                if (each.name in self.lists.queues if each.kind == "queue" else self.streams_take)
            ]
            if not on_its_way:
                return
            await asyncio.sleep(0.001)

    @property
    def streams_take(self) -> bool:
        return self.engine.streams.error is None

    def arrive(self) -> None:
        """What left has arrived: in queues in the order that they say, in streams once."""
        for leaving in [each for each in self.lists.leaving if each.kind == "stream"]:
            self.sent[leaving.target][leaving.entry.message_id] += 1
            self.lists.leaving.remove(leaving)
        if self.streams_take:
            self.check_streams()
        for name, queue in self.lists.queues.items():
            coming = [
                each for each in self.lists.leaving if (each.kind, each.target) == ("queue", name)
            ]
            if not coming:
                continue
            there = self.run(
                self.engine.engine.peek(TENANT, name, after=queue.next_sequence - 1, limit=1_000)
            ).messages
            assert len(there) == len(coming)
            for one in there:
                came_from = dict(one.headers)["queue-message-id"].decode()
                reason = dict(one.headers)["queue-reason"].decode()
                left = dict(one.headers)["queue"].decode()
                leaving = next(
                    each
                    for each in coming
                    if (each.entry.message_id.hex(), each.reason, each.queue)
                    == (came_from, reason, left)
                )
                coming.remove(leaving)
                self.lists.leaving.remove(leaving)
                self.anew(queue, leaving.entry, leaving)
                self.note(f"a dead letter arrived: {leaving.reason}")

    def check_streams(self) -> None:
        for stream in STREAMS:
            records = self.engine.streams.records[TENANT, stream]
            numbers = [record.number for record in records]
            assert numbers == sorted(set(numbers))
            ids = [
                bytes.fromhex(dict(record.headers)["queue-message-id"].decode())
                for record in records
            ]
            assert Counter(ids) == self.sent[stream]

    def check_queue(self, name: str, queue: QueueList) -> None:
        found = []
        after: int | None = None
        while True:
            page = self.run(self.engine.engine.peek(TENANT, name, after=after, limit=1_000))
            found += page.messages
            after = page.after
            if after is None:
                break
        assert [
            (
                each.message_id,
                each.sequence,
                each.state,
                each.deliveries,
                each.priority,
                each.due_at,
                each.expires_at,
                each.published_at,
                bytes(each.value or b""),
                tuple(each.headers),
                None if each.dead_letter is None else each.dead_letter.queue,
            )
            for each in found
        ] == [
            (
                each.message_id,
                each.sequence,
                each.state,
                each.deliveries,
                each.priority,
                each.due_at,
                each.expires_at,
                each.published_at,
                each.value,
                each.headers,
                each.origin,
            )
            for each in queue.entries
        ]
        shown = self.run(self.engine.describe(name))
        sums = shown.sums
        assert (sums.ready, sums.in_flight, sums.delayed, sums.damaged, sums.bytes) == (
            queue.count("ready"),
            queue.count("in-flight"),
            queue.count("delayed"),
            0,
            queue.size,
        )
        assert tuple(shown.totals) == tuple(vars(queue.totals).values())
        assert (shown.next_sequence, shown.version) == (queue.next_sequence, queue.version)
