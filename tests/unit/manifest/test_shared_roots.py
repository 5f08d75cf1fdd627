"""What a busy stream costs in puts: large fragments share their roots, and nothing waits too long."""

from dataclasses import replace

import pytest
from support.manifest import NODE, OWNER, STREAM, Fault, ManifestHarness, a_fragment

from bottomless.errors import Corrupt, Unavailable
from bottomless.model.config import StreamConfig
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import GIB, MIB
from bottomless_server.drives.s3_options import S3Options
from bottomless_server.manifest.mutators.accept_gap import accept_gap
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.mutators.stream_task import StreamTask
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.tree.committer import Committer, publish_bounds
from bottomless_server.manifest.tree.core.publish_decision import is_full, wait_ms
from bottomless_server.uploader.calls import FETCH_SIZE_MAX
from bottomless_server.uploader.core.cutter import (
    ChunksFetched,
    CommitSeen,
    Cut,
    Cutter,
    Fetch,
    Measure,
)

CONFIG = StreamConfig().fragment
BOUNDS = publish_bounds(ManifestSettings())
WAIT_MS = BOUNDS.root_wait_ms
LARGE = CONFIG.target_bytes


def fragment(number: int, *, size: int = LARGE, began: int = 0, ended: int = 0) -> FragmentInfo:
    made = a_fragment(10 * number, 10 * number + 10)
    return made._replace(size=size, first_timestamp=began, last_timestamp=ended)


def as_they_are(**changed: int) -> ManifestHarness:
    """With the settings that nobody changed, but these."""
    defaults = ManifestSettings()
    return ManifestHarness(
        manifest_fanout=defaults.manifest_fanout,
        manifest_debounce_ms=defaults.manifest_debounce_ms,
        manifest_debounce_count=defaults.manifest_debounce_count,
        **changed,
    )


class Busy:
    """A stream whose fragments come one after the other."""

    def __init__(self, harness: ManifestHarness, committer: Committer) -> None:
        self.harness = harness
        self.committer = committer
        self.number = 0
        self.waited: list[int] = []
        """How long each fragment waited until it was published, in ms."""
        self._came: list[int] = []

    @property
    def now(self) -> int:
        return self.harness.clock.true_now

    async def register(self, size: int = LARGE, fill_ms: int = 0) -> None:
        first = 10 * self.number
        (uid,) = await intend(self.harness.context, self.committer, "s1", [first])
        info = fragment(self.number, size=size, began=self.now - fill_ms, ended=self.now)
        self.number += 1
        self._came.append(self.now)
        await self.committer.register("s1", [info._replace(uid=uid)])
        self._look()

    async def go_on(self, ms: int) -> None:
        """Let time go by, and all that is due be done when it is."""
        end = self.now + ms
        while (at := self.committer.wake_at) is not None and at <= end:
            self.harness.clock.true_now = max(at, self.now)
            await self.committer.wake()
            self._look()
        self.harness.clock.true_now = end

    def _look(self) -> None:
        published = self.committer.record.published_next // 10
        for came in self._came[len(self.waited) : published]:
            self.waited.append(self.now - came)

    @property
    def put_count(self) -> int:
        """Puts of roots and groups, with the stream's first one, which has nothing in it."""
        return len(self.harness.drive.calls)


async def busy(harness: ManifestHarness) -> Busy:
    return Busy(harness, await harness.open())


@pytest.mark.parametrize("mib_per_second", [40, 100, 500])
async def test_a_gib_of_a_busy_stream_costs_three_puts_of_metadata(mib_per_second: int) -> None:
    stream = await busy(as_they_are())
    fill_ms = LARGE * 1000 // (mib_per_second * MIB)

    for _ in range(4 * GIB // LARGE):
        await stream.go_on(fill_ms)
        await stream.register(fill_ms=fill_ms)

    assert stream.put_count <= 4 * 3
    assert max(stream.waited) <= WAIT_MS


def test_a_gib_of_a_busy_stream_costs_seventeen_puts_of_data() -> None:
    """A fragment ends before the chunk that would make it too large, so it is a little smaller than
    it may be; and one of the usual size is one put, not some for its parts."""
    chunk = MIB + 300
    end = GIB // chunk
    cutter, sizes = Cutter(), list[int]()
    cutter.restart(0)
    cutter.commit_seen(CommitSeen(1, end, end * chunk, LARGE, CONFIG.max_age_ms), 0)
    cutter.drain()
    while cutter.uncut:
        match cutter.decide(0):
            case Measure(first):
                cutter.measured(ChunksFetched(first, first + 1, chunk, (first + 1) * chunk))
            case Fetch(first, max_bytes):
                count = max(1, min(max_bytes // chunk, FETCH_SIZE_MAX // chunk, end - first))
                last = first + count
                cutter.chunks_fetched(ChunksFetched(first, last, count * chunk, last * chunk))
            case Cut(first, last):
                sizes.append((last - first) * chunk)
                cutter.cut_taken()
            case other:
                pytest.fail(f"it waits: {other}")

    assert 16 <= len(sizes) <= 17
    assert max(sizes) + MIB <= S3Options("bucket").multipart_bytes


async def test_without_the_wait_each_large_fragment_has_a_root_of_its_own() -> None:
    """That the count above can fail: this is what it was."""
    stream = await busy(as_they_are(manifest_root_wait_ms=0))

    for _ in range(16):
        await stream.go_on(600)
        await stream.register(fill_ms=600)
    await stream.go_on(WAIT_MS)

    assert stream.put_count == 1 + 16


async def test_a_small_fragment_goes_soon_with_all_large_ones_before_it() -> None:
    stream = await busy(as_they_are())
    await stream.register()
    await stream.go_on(1_000)
    assert stream.waited == []

    await stream.register(size=1_000)
    await stream.go_on(BOUNDS.debounce_ms)

    assert stream.waited == [1_000 + BOUNDS.debounce_ms, BOUNDS.debounce_ms]
    assert stream.put_count == 1 + 1


async def test_a_large_fragment_waits_for_no_more_than_it_may_though_others_come() -> None:
    stream = await busy(as_they_are())
    for _ in range(4):
        await stream.register()
        await stream.go_on(WAIT_MS // 3 - 1)

    assert stream.waited[0] == WAIT_MS


async def test_no_record_becomes_older_by_the_wait_than_its_stream_allows() -> None:
    stream = await busy(as_they_are())
    fill_ms = CONFIG.max_age_ms - 3_000
    await stream.register(fill_ms=fill_ms)
    await stream.go_on(WAIT_MS)

    assert stream.waited == [3_000]


async def test_a_flush_waits_for_nothing() -> None:
    stream = await busy(as_they_are())
    await stream.register()

    await stream.committer.flush()

    assert stream.committer.record.published_next == 10


async def test_a_session_that_begins_again_has_what_waits_published() -> None:
    """So a drain asks for it, of this release and the one before."""
    stream = await busy(as_they_are())
    await stream.register()
    await intend(stream.harness.context, stream.committer, "s1", [10])
    before = stream.committer.record

    record = await begin(stream.harness.context, stream.committer, "s1")

    assert record.published_next == 10
    assert record.intents == before.intents[1:]
    assert (record.uploader, record.quarantine) == ("s1", ())


async def test_a_flush_that_fails_is_tried_again_soon() -> None:
    """Flushes were only tested to succeed, and to fail where nothing waited long: then the time to
    which a flush pretends is hardly later than the true one."""
    stream = await busy(as_they_are())
    await stream.register()

    for _ in range(8):
        stream.harness.coordination.faults = [Fault.UNAVAILABLE]
        await stream.committer.flush()
        assert stream.committer.wake_at is not None
        assert stream.committer.wake_at - stream.now <= BOUNDS.retry_ms_max

    await stream.go_on(BOUNDS.retry_ms_max)
    assert stream.committer.record.published_next == 10


async def test_a_wait_has_an_end_though_faults_cut_it_off_again_and_again() -> None:
    """Each fault, as a trim into a damaged group, ends the committer with what waits in it. The
    checks of that let nothing wait longer than for the next fault, so they saw no wait begin anew.
    A manifest that is started again and again is the same to the stream."""
    harness = as_they_are()
    session = await harness.open()
    (uid,) = await intend(harness.context, session, "s1", [0])
    info = fragment(0)._replace(uid=uid)
    task = StreamTask(harness.context, STREAM)

    async def fail(_: Committer) -> None:
        raise Corrupt("a group is damaged")

    for _ in range(2):
        with pytest.raises(Corrupt):
            await task.run(fail)
        await task.run(lambda committer: committer.register("s1", [info]))
        harness.clock.true_now += BOUNDS.debounce_ms
        await task.run(Committer.wake)

    assert (await harness.record()).published_next == 10
    await task.aclose()


async def test_only_the_first_root_after_a_start_is_in_a_hurry() -> None:
    stream = await busy(as_they_are())
    await intend(stream.harness.context, stream.committer, "s1", [0])
    stream.committer = await Committer.open(stream.harness.context, STREAM)

    for _ in range(2):
        await stream.register()
        await stream.go_on(WAIT_MS)

    assert stream.waited == [BOUNDS.debounce_ms, WAIT_MS]


async def test_a_trim_alone_does_not_end_the_hurry_of_what_had_an_intent_before_a_start() -> None:
    """Its root names none of what waits. In the check of the first root nothing but fragments is
    published."""
    stream = await busy(as_they_are())
    await stream.register()
    await stream.go_on(WAIT_MS)
    await intend(stream.harness.context, stream.committer, "s1", [10])
    stream.committer = await Committer.open(stream.harness.context, STREAM)

    assert await trim(stream.harness.context, stream.committer, 10, allow_empty=True) == 10
    await stream.register()
    await stream.go_on(WAIT_MS)

    assert stream.waited == [WAIT_MS, BOUNDS.debounce_ms]


async def test_a_gap_that_is_accepted_covers_nothing_that_waits_for_its_root() -> None:
    """The log lost its oldest segments after they were uploaded, and before their root was put. The
    other checks of such gaps have nothing on its way, and a wait was too short to meet one."""
    stream = await busy(as_they_are())
    await stream.committer.change(lambda record: replace(record, home=NODE, owner_url=OWNER))
    await stream.register()
    stream.harness.owners.first[STREAM] = 10
    stream.harness.owners.committed[STREAM] = 20

    stream.harness.coordination.faults = [Fault.UNAVAILABLE]
    with pytest.raises(Unavailable):
        await accept_gap(stream.harness.context, stream.committer, 10)
    done = await accept_gap(stream.harness.context, stream.committer, 10)

    assert done["gap"]["first_offset"] is None, "there was nothing to be left out"
    (kept,) = await stream.harness.entries()
    assert isinstance(kept, FragmentInfo)
    assert (kept.first_offset, kept.next_offset) == (0, 10)


def test_how_long_a_run_waits() -> None:
    age = CONFIG.max_age_ms
    large, small = fragment(0), fragment(1, size=BOUNDS.large_size - 1)

    assert wait_ms([large], BOUNDS, age) == WAIT_MS
    assert wait_ms([large, small], BOUNDS, age) == BOUNDS.debounce_ms
    assert wait_ms([fragment(0, ended=2_000)], BOUNDS, 3_000) == 1_000
    assert wait_ms([fragment(0, ended=9_000)], BOUNDS, 3_000) == BOUNDS.debounce_ms
    assert wait_ms([large], replace(BOUNDS, root_wait_ms=0), age) == BOUNDS.debounce_ms


def test_when_a_run_is_worth_its_root() -> None:
    count = BOUNDS.run_size // LARGE
    large = [fragment(number) for number in range(count)]

    assert is_full(large, BOUNDS)
    assert not is_full(large[1:], BOUNDS)
    assert is_full([fragment(n, size=1) for n in range(BOUNDS.debounce_count)], BOUNDS)
