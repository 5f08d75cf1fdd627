"""Decide when fragments become part of the manifest, and in which form.

The keeper holds what one stream's manifest is (the last committed record and root)
and what is to be added. Uploads finish in any order, but the manifest grows only by
runs: a fragment waits here until the one before it is there. Published roots are
debounced, since each one is a whole object, which a store bills: a deadline is set by the
first fragment that could go, a full run goes at once, and the timer is set again while some
remain. Large fragments wait longer than others, since their stream is busy and more come soon;
but not where they may have waited already, before a crash or a fault.

Events go in, actions come out; nothing here waits, reads a clock or draws a number.
`../committer.py` carries the actions out in the order given: groups, root, pointer.

On the record's path: after services/bottomless_server/uploader/fragments.py, before
services/bottomless_server/manifest/tree/committer.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import Node
from bottomless.model.names import Uid
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.manifest.tree.core.events import (
    AcceptGap,
    Action,
    Edit,
    EditAsked,
    Event,
    Failed,
    FragmentsRegistered,
    PublishAt,
    Published,
    Refuse,
    Resolved,
    TakeOver,
    TimeReached,
    Why,
)
from bottomless_server.manifest.tree.core.planning import PublishPlan, plan_publish
from bottomless_server.tree.append import check_run
from bottomless_server.tree.resolve import epoch_covers


@dataclass(frozen=True, slots=True)
class PublishBounds:
    """When to publish, and how much to hold."""

    fanout: int
    debounce_ms: int
    debounce_count: int
    """A run this long is published without waiting."""
    held_count_max: int
    """Fragments held at most beside the next one; further ones are refused until the run closes."""
    root_wait_ms: int = 0
    """How long large fragments may wait for others to share their root, where no record of theirs
    becomes older by it than the stream allows."""
    large_size: int = 16 * MIB
    """A fragment of so many bytes is large."""
    run_size: int = 512 * MIB
    """A run of so many bytes is published without waiting."""
    retry_ms: int = 100
    retry_ms_max: int = 5_000


class Keeper:
    """The state of one stream's manifest. `check()` states what always holds."""

    def __init__(
        self, record: StreamRecord, root: Node, bounds: PublishBounds, new_uid: Callable[[], Uid]
    ) -> None:
        self.record = record
        self.root = root
        """The root that the record names; before the first publish, one without entries."""
        self.publish_at: int | None = None
        """When to publish, by a clock that nobody sets: one that was set back would stop publishing
        for as long."""
        self._bounds = bounds
        self._new_uid = new_uid
        self._held: dict[int, FragmentInfo] = {}
        self._plan: PublishPlan | None = None
        self._in_flight = False
        self._failures = 0
        self._hurries = bool(record.intents)
        """Whether the next root waits no longer than `debounce_ms`. What had an intent before this
        keeper began may have waited with another one, which a crash or a fault ended: where each
        began the long wait again, there would be no end to it."""
        self.check()

    @property
    def idle(self) -> bool:
        return not self._held

    def holds(self, uid: Uid) -> bool:
        """Whether a fragment was taken and waits to be published."""
        return any(fragment.uid == uid for fragment in self._held.values())

    def plans(self, uid: Uid) -> bool:
        """Whether the root `uid` is what is to be published."""
        return self._plan is not None and self._plan.root.uid == uid

    def handle(self, event: Event, now: int) -> list[Action]:
        match event:
            case FragmentsRegistered():
                return self._register(event, now)
            case EditAsked(edit):
                return self._edit(edit)
            case TimeReached():
                return self._time_reached(now)
            case Published(record):
                return self._published(record, now)
            case Failed():
                return self._failed(now)
            case Resolved(record, root):
                return self._resolved(record, root, now)

    def _register(self, event: FragmentsRegistered, now: int) -> list[Action]:
        assert not self._in_flight, "one thing at a time"
        new = tuple({f.uid: f for f in event.fragments if not self.holds(f.uid)}.values())
        intents = self._intents()
        found = [(f, self._refuses(f, intents.get(f.uid), event.session)) for f in new]
        for why in Why:
            if refused := tuple(f for f, one in found if one is why):
                return [Refuse(refused, why)]
        firsts = {fragment.first_offset: fragment for fragment in new}
        if len(firsts) < len(new):
            return [Refuse(new, Why.TAKEN)]
        # What goes on from the end waits for nobody. Were it refused, all others would wait for it.
        waiting = (self._held.keys() | firsts.keys()) - {self.root.next_offset}
        if len(waiting) > self._bounds.held_count_max:
            return [Refuse(new, Why.FULL)]
        self._held |= firsts
        return self._arm(now)

    def _intents(self) -> dict[Uid, Intent]:
        return {intent.uid: intent for intent in self.record.intents}

    def _refuses(
        self, fragment: FragmentInfo, intent: Intent | None, session: str | None
    ) -> Why | None:
        if session is not None and session != self.record.uploader:
            return Why.OLD_SESSION
        if intent is None or not is_meant(intent, fragment):
            return Why.NO_INTENT
        if session is not None and intent.session != session:
            return Why.OLD_SESSION
        if fragment.first_offset < self.root.next_offset:
            return Why.TAKEN
        if not epoch_covers(self.record, fragment):
            return Why.FENCED
        holder = self._held.get(fragment.first_offset)
        return Why.TAKEN if holder is not None and holder.uid != fragment.uid else None

    def _run(self) -> tuple[FragmentInfo, ...]:
        return contiguous_run(self._held, self.root.next_offset)

    def _arm(self, now: int, delay_ms: int | None = None) -> list[Action]:
        run = self._run()
        if not run:
            self.publish_at = None
            return []
        if delay_ms is not None:
            wanted = now + delay_ms
        elif self._failures:
            wanted = now + self._bounds.debounce_ms
        elif is_full(run, self._bounds):
            return self._publish(run)
        elif self._hurries:
            wanted = now + self._bounds.debounce_ms
        else:
            wanted = now + wait_ms(run, self._bounds, self.record.config.fragment.max_age_ms)
        if self.publish_at is not None and (self._failures or self.publish_at <= wanted):
            return []
        self.publish_at = wanted
        return [PublishAt(self.publish_at)]

    def _time_reached(self, now: int) -> list[Action]:
        if self.publish_at is None or now < self.publish_at or self._in_flight:
            return []
        return self._publish(self._run())

    def _publish(self, run: Sequence[FragmentInfo]) -> list[Action]:
        self.publish_at = None
        if self._plan is None:
            if not run:
                return []
            self._plan = self._make_plan(run)
        self._in_flight = True
        return list(self._plan.actions)

    def _make_plan(self, run: Sequence[FragmentInfo], edit: Edit | None = None) -> PublishPlan:
        return plan_publish(self.record, self.root, run, edit, self._bounds.fanout, self._new_uid)

    def _edit(self, edit: Edit) -> list[Action]:
        """Plan an edit; what waits at the end goes with it, as one root serves both."""
        assert not self._in_flight, "one thing at a time"
        run = () if isinstance(edit, TakeOver | AcceptGap) else self._run()
        self._plan = self._make_plan(run, edit)
        self.publish_at = None
        self._in_flight = True
        return list(self._plan.actions)

    def _published(self, record: StreamRecord, now: int) -> list[Action]:
        plan, self._plan, self._in_flight = self._plan, None, False
        assert plan is not None
        assert record.root is not None
        assert record.root.uid == plan.root.uid, "another root was published"
        self.record, self.root = record, plan.root
        self._failures = 0
        # A root of an edit alone (the first one, a trim) publishes nothing of what waits.
        self._hurries = self._hurries and not plan.run
        for fragment in plan.run:
            del self._held[fragment.first_offset]
        return [*self._drop_refused(), *self._arm(now)]

    def _failed(self, now: int) -> list[Action]:
        self._in_flight = False
        if self._plan is not None and self._plan.publish.edit is not None:
            # Who asked for it hears of it, and asks again; what waits is tried by itself.
            self._plan = None
        delay_ms = int(backoff(self._failures, self._bounds.retry_ms, self._bounds.retry_ms_max))
        self._failures += 1
        return self._arm(now, delay_ms)

    def _resolved(self, record: StreamRecord, root: Node, now: int) -> list[Action]:
        assert record.version >= self.record.version, "the record went back"
        assert root.next_offset >= self.root.next_offset, "the manifest went back"
        assert root.first_offset >= self.root.first_offset, "the floor went back"
        self.record, self.root, self._in_flight = record, root, False
        refused = self._drop_refused()
        if self._plan is not None and not self._still_fits(self._plan):
            self._plan = None
        return [*refused, *self._arm(now)]

    def _still_fits(self, plan: PublishPlan) -> bool:
        base = plan.publish.base
        same = (self.record.version, self.record.epoch) == (base.version, base.epoch)
        held = all(self.holds(uid) for uid in plan.publish.uids)
        return same and held and plan.publish.edit is None

    def _drop_refused(self) -> list[Action]:
        """Let go what the newer record does not allow; who waits for it is told why."""
        refused: list[Action] = []
        intents = self._intents()
        for first, fragment in list(self._held.items()):
            why = self._refuses(fragment, intents.get(fragment.uid), None)
            if why is not None:
                del self._held[first]
                refused.append(Refuse((fragment,), why))
        if not self._run():
            self.publish_at = None
        return refused

    def check(self) -> None:
        """Assert the rules that hold between any two events."""
        record, root = self.record, self.root
        assert record.published_next == root.next_offset
        assert root.first_offset <= root.next_offset
        assert record.root is not None or len(root.entries) == 0
        assert record.root is None or record.root.uid == root.uid
        assert all(first == f.first_offset for first, f in self._held.items())
        assert all(first >= root.next_offset for first in self._held)
        assert len(self._held.keys() - {root.next_offset}) <= self._bounds.held_count_max
        assert self._in_flight or self.publish_at is not None or not self._run()
        check_run(root.entries)


def is_meant(intent: Intent, fragment: FragmentInfo) -> bool:
    """Whether a fragment is what an intent is about, and lies where it says."""
    place = (fragment.first_offset, fragment.drive, fragment.copy)
    return place == (intent.first_offset, intent.drive, 0)


def is_full(run: Sequence[FragmentInfo], bounds: PublishBounds) -> bool:
    """Whether a root is worth its put already."""
    if len(run) >= bounds.debounce_count:
        return True
    return sum(fragment.size for fragment in run) >= bounds.run_size


def wait_ms(run: Sequence[FragmentInfo], bounds: PublishBounds, max_age_ms: int) -> int:
    """How long a root may wait for more fragments after this run.

    A large fragment was cut because it was full, so its stream is busy, and its records are younger
    than they may become: the rest of that time is what it may wait. A smaller one was cut because
    its records are old, or because somebody waits for all of it (a stop, a new owner): it goes soon,
    with all that stand before it.

    Ages are differences of the stream's own timestamps: clocks of two machines are not compared.
    """
    if any(fragment.size < bounds.large_size for fragment in run):
        return bounds.debounce_ms
    age_ms = run[-1].last_timestamp - run[0].first_timestamp
    return max(bounds.debounce_ms, min(bounds.root_wait_ms, max_age_ms - age_ms))


@guard("contiguity of runs")
def contiguous_run(held: Mapping[int, FragmentInfo], offset: int) -> tuple[FragmentInfo, ...]:
    """The fragments that go on from an offset without a hole, of those in `held` by their firsts."""
    run = []
    following = held.get(offset)
    while following is not None:
        run.append(following)
        following = held.get(following.next_offset)
    return tuple(run)
