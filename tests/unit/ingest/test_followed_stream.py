"""A log that follows another one on a real directory: what it takes, and what it is when it is opened."""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from annotated_types import Le
from support.guards import remove

from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.chunk import split_chunks
from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.limits import MIB
from bottomless_server.ingest.log.core.batcher import Round
from bottomless_server.ingest.log.layout import aside_dir, segment_path, stream_dir
from bottomless_server.ingest.log.segments import Written
from bottomless_server.ingest.replicas import followed_stream, log_opener
from bottomless_server.ingest.replicas.followed_log import FollowedLog
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.core.following import OpenRefusal
from bottomless_server.node.core.sending import GATHERED_SIZE
from bottomless_server.protocol.replica import BODY_SIZE_MAX, NOWHERE, Answer, Place, Taken
from unit.ingest.harness import STREAM
from unit.ingest.replica_logs import ROOT, FollowerNode, OwnerLog, at_call, nothing


@pytest.fixture
async def follower() -> AsyncIterator[FollowerNode]:
    node = FollowerNode()
    yield node
    await node.aclose()


def an_owner(*sizes: int) -> OwnerLog:
    """With records of these sizes, of which some make a new segment."""
    owner = OwnerLog()
    owner.append(*sizes)
    return owner


async def test_its_files_are_those_of_the_owner_byte_for_byte(follower: FollowerNode) -> None:
    owner = an_owner(50, 600, 2_500, 600, 10)
    owner.write_nothing()
    owner.append(600, 600, 600)
    await follower.copy(owner)
    assert follower.files() == owner.files
    assert len(owner.log.segments) > 2


@pytest.mark.parametrize("size_max", [1, 700, 10**6])
async def test_pieces_of_any_size_make_the_same_log(follower: FollowerNode, size_max: int) -> None:
    owner = an_owner(50, 600, 2_500, 600, 10)
    await follower.copy(owner, size_max)
    assert follower.files() == owner.files


async def test_a_body_may_hold_all_of_it_at_once_and_all_of_it_again(
    follower: FollowerNode,
) -> None:
    owner, items, end = an_owner(50, 600, 600, 600, 10), [], None
    await follower.open(owner)
    while (piece := owner.piece(end)) is not None:
        items.append(owner.item(piece))
        end = piece.end
    answers = await follower.take(*items, *items)
    assert {one.taken for one in answers} == {Taken.OK}
    assert answers[-1].end == end
    assert follower.files() == owner.files


async def test_it_goes_on_after_a_restart_where_it_ended(follower: FollowerNode) -> None:
    owner = an_owner(50, 600, 600)
    await follower.copy(owner)
    follower.die()
    owner.append(600, 600)
    assert (await follower.take(owner.item(None))) == [Answer(Taken.NOT_OPEN, NOWHERE)]
    await follower.copy(owner)
    assert follower.files() == owner.files


async def test_a_log_that_is_closed_is_in_use_no_more_from_that_moment_on(
    follower: FollowerNode,
) -> None:
    """Whoever opens it anew waits for its end, and where that is over gives way to nobody."""
    await follower.copy(an_owner(50))
    following, loop = follower.following, asyncio.get_running_loop()
    letting_go = asyncio.create_task(following.let_go(STREAM))
    await asyncio.sleep(0)
    [closing] = [one for one in asyncio.all_tasks() if one.get_name() == f"replica-end-{STREAM}"]
    seen = []

    def look() -> None:
        seen.append((closing.done(), following.in_use(STREAM)))
        if not letting_go.done():
            loop.call_soon(look)

    look()
    await letting_go
    assert (True, True) not in seen
    assert (True, False) in seen


async def test_what_does_not_go_on_at_its_end_is_not_taken(follower: FollowerNode) -> None:
    owner = an_owner(50, 60, 70)
    first = owner.piece(None)
    assert first is not None
    second = owner.piece(first.end)
    assert second is not None
    third = owner.piece(second.end)
    assert await follower.open(owner) is None
    assert await follower.take(owner.item(second)) == [Answer(Taken.GAP, NOWHERE)]
    assert await follower.take(owner.item(first)) == [Answer(Taken.OK, first.end)]
    assert await follower.take(owner.item(third)) == [Answer(Taken.GAP, first.end)]
    assert await follower.take(owner.item(first)) == [Answer(Taken.OK, first.end)]


async def test_a_part_of_an_append_is_not_taken(follower: FollowerNode) -> None:
    """Recovery would cut it, though the owner was told that it is there."""
    owner = an_owner(2_500)
    whole = owner.piece(None)
    assert whole is not None
    first, *others = split_chunks(whole.data)
    assert others
    await follower.open(owner)
    part = owner.item(whole._replace(data=bytes(first[1])))
    assert await follower.take(part) == [Answer(Taken.GAP, NOWHERE)]
    assert follower.files() == {}


async def test_chunks_of_other_offsets_are_not_taken(follower: FollowerNode) -> None:
    owner = an_owner(50)
    owner.published_next = 1
    await follower.open(owner)
    shifted = owner.item(owner.piece(None))._replace(place=Place(1, HEADER_SIZE))
    assert await follower.take(shifted) == [Answer(Taken.GAP, NOWHERE)]


async def test_a_body_with_a_damaged_chunk_is_refused_and_nothing_of_it_is_taken(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 60)
    first = owner.piece(None)
    assert first is not None
    second = owner.piece(first.end)
    assert second is not None
    await follower.open(owner)
    bad = second._replace(data=bytes(second.data[:-1]) + bytes([second.data[-1] ^ 1]))
    with pytest.raises(Corrupt):
        await follower.take(owner.item(first), owner.item(bad))
    assert follower.files() == {}


async def test_an_owner_of_the_past_is_fenced(follower: FollowerNode) -> None:
    old, new = an_owner(50), an_owner(50)
    new.claim()
    await follower.copy(old)
    await follower.copy(new)
    assert await follower.open(old) is OpenRefusal.FENCED
    assert (await follower.take(old.item(old.piece(None))))[0].taken is Taken.FENCED
    follower.die()
    assert await follower.open(old) is OpenRefusal.FENCED
    assert not isinstance(await follower.open(new), OpenRefusal)


async def test_what_this_node_owns_is_stopped_before_it_follows(follower: FollowerNode) -> None:
    owner = an_owner(50)
    owner.epoch = 7
    follower.here.owned = 7
    assert await follower.open(owner) is OpenRefusal.FENCED
    assert follower.here.stops == 0
    follower.here.owned = 6
    assert await follower.open(owner) is None
    assert follower.here.stops == 1


def two_logs_of_one_past() -> tuple[OwnerLog, OwnerLog]:
    """Two owners of epochs that follow one another, of which the second never had all of the first."""
    first, second = an_owner(50, 600, 600), an_owner(50, 600, 600)
    first.append(600, 600, 70)
    second.claim()
    second.append(300)
    return first, second


async def test_it_is_cut_to_what_a_later_owner_has(follower: FollowerNode) -> None:
    first, second = two_logs_of_one_past()
    await follower.copy(first, committed=False)
    await follower.copy(second)
    assert follower.files() == second.files


async def of_a_later_owner(follower: FollowerNode) -> OwnerLog:
    """The log is cut in the middle of a segment, and loses the segments after it."""
    first, second = two_logs_of_one_past()
    await follower.copy(first, committed=False)
    return second


async def of_one_that_freed_much(follower: FollowerNode) -> OwnerLog:
    """All of the log is published, and goes."""
    owner = an_owner(50, 600, 600)
    await follower.copy(owner)
    owner.append(600, 600, 600, 600)
    owner.free(2)
    owner.claim()
    return owner


async def of_one_that_came_back_older(follower: FollowerNode) -> OwnerLog:
    """The follower knows more, is not counted, and sets its log aside."""
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner)
    owner.forget(1)
    owner.claim()
    return owner


STEP = 3
"""Every third call, and each process begins with another one."""
OPENINGS = [of_a_later_owner, of_one_that_freed_much, of_one_that_came_back_older]


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("prepare", OPENINGS)
async def test_a_death_before_any_call_of_an_opening_leaves_a_log_that_is_opened_again(
    prepare: Callable[[FollowerNode], Awaitable[OwnerLog]], power: bool
) -> None:
    number = int(power)
    while await dies_at(prepare, number, power=power):
        number += STEP
    assert number > 20


async def dies_at(
    prepare: Callable[[FollowerNode], Awaitable[OwnerLog]], number: int, *, power: bool
) -> bool:
    """Whether a follower met its end at a call of this number; what it is opened as is right."""

    def die() -> None:
        # No call goes through any more: for the disk that is the end of the process.
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    follower = FollowerNode()
    owner = await prepare(follower)
    await follower.following.let_go(STREAM)
    follower.disk.before = at_call(number, die)
    try:
        await follower.copy(owner)
        dead = False
    except (Unavailable, AssertionError):
        dead = True
    follower.die(random.Random(number) if power else None)
    await follower.copy(owner)
    assert follower.files() == owner.files
    await follower.aclose()
    return dead


async def test_the_steps_of_an_opening_and_of_a_round_come_in_their_order(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []

    async def reach(point: str) -> None:
        passed.append(point.removeprefix("ingest.replica."))

    owner = await of_a_later_owner(follower)
    for module in (log_opener, followed_stream):
        monkeypatch.setattr(module, "reach", reach)
    await follower.copy(owner)
    assert passed == ["after-checkpoint", "after-removal", "after-cut", "after-sync"]


async def test_what_was_answered_is_there_after_a_loss_of_power() -> None:
    assert await lost_after_an_answer() == 0


async def test_without_its_sync_what_was_answered_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unsynced(_: object, local: FollowedLog, sealed: Round, elapsed: int) -> Written:
        written = local.write(sealed, sealed.chunks[0].epoch, elapsed)
        return local.note_synced(written)

    remove(monkeypatch, "the sync of a follower", unsynced)
    assert await lost_after_an_answer() > 0


async def lost_after_an_answer() -> int:
    """How many of some followers end before what they answered, after a loss of power."""
    lost = 0
    for seed in range(4):
        owner, follower = an_owner(50, 600, 600, 30), FollowerNode()
        await follower.copy(owner)
        answered = owner.log.synced_place()
        follower.die(random.Random(seed))
        end = await follower.open(owner)
        assert not isinstance(end, OpenRefusal)
        lost += end is None or end < Place(*answered)
        await follower.aclose()
    return lost


async def test_a_full_disk_takes_nothing_and_goes_on_when_it_has_room(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 1_600)
    await follower.open(owner)
    first = owner.piece(None)
    assert first is not None
    second = owner.piece(first.end)
    (answer,) = await follower.take(owner.item(first))

    def full(call: str, path: Path) -> None:
        if call in ("pwritev", "create") and path.suffix == ".segment":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    follower.disk.before = full
    assert await follower.take(owner.item(second)) == [Answer(Taken.STORAGE, answer.end)]
    follower.disk.before = lambda *_: None
    assert (await follower.take(owner.item(second)))[0].taken is Taken.OK
    assert follower.files() == owner.files


async def test_local_logs_that_reached_their_bound_take_nothing_and_go_on_when_they_have_room(
    follower: FollowerNode,
) -> None:
    """RP6, full."""
    owner = an_owner(50, 1_600)
    await follower.open(owner)
    first = owner.piece(None)
    assert first is not None
    second = owner.piece(first.end)
    (answer,) = await follower.take(owner.item(first))
    held, follower.use.bytes_max = follower.use.held, 0
    assert held > 0
    assert await follower.take(owner.item(second)) == [Answer(Taken.STORAGE, answer.end)]
    # What was taken before is repeated, since the owner asks for no more than that.
    assert await follower.take(owner.item(first)) == [answer]
    assert follower.use.held == held
    follower.use.bytes_max = 10**12
    assert (await follower.take(owner.item(second)))[0].taken is Taken.OK
    assert follower.files() == owner.files


async def test_without_its_bound_a_log_that_follows_grows_on(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the bound of logs that follow others", lambda _: False)
    owner = an_owner(50)
    follower.use.bytes_max, follower.use.held = 0, 1
    await follower.open(owner)
    assert (await follower.take(owner.item(owner.piece(None))))[0].taken is Taken.OK


async def test_a_log_that_is_closed_counts_on_since_it_lies_here(follower: FollowerNode) -> None:
    await follower.copy(an_owner(50, 1_600))
    held = follower.use.held
    assert held > 1_600
    await follower.following.let_go(STREAM)
    assert follower.use.held == held


async def test_a_log_whose_beginning_was_refused_begins_later_and_leaves_nothing_of_it(
    follower: FollowerNode,
) -> None:
    owner = an_owner(600)
    await follower.open(owner)
    writes = list[Path]()

    def full(call: str, path: Path) -> None:
        # The header of the segment is written, and its first chunk is not.
        if call != "pwritev" or path.suffix != ".segment":
            return
        writes.append(path)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    follower.disk.before = full
    (answer,) = await follower.take(owner.item(owner.piece(None)))
    assert answer.taken is Taken.STORAGE
    follower.disk.before = nothing
    owner.append(600, 600, 600)
    owner.free(1)
    await follower.copy(owner)
    assert follower.files() == owner.files
    follower.die()
    assert await follower.open(owner) == Place(*owner.log.synced_place())


async def test_what_is_damaged_at_its_owner_is_not_sent() -> None:
    """It would be refused with all that other streams have in the same body."""
    owner = an_owner(600)
    fd = owner.disk.open(segment_path(stream_dir(ROOT, STREAM), 0))
    owner.disk.file(fd).data[-100] ^= 1
    owner.disk.close(fd)
    with pytest.raises(Corrupt):
        owner.piece(None)


async def test_after_a_sync_that_failed_nothing_is_taken_before_the_next_opening(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 60)
    await follower.open(owner)
    first = owner.piece(None)
    assert first is not None
    await follower.take(owner.item(first))

    def fails(call: str, _: Path) -> None:
        if call in ("fdatasync", "truncate"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    follower.disk.before = fails
    second = owner.item(owner.piece(first.end))
    assert (await follower.take(second)) == [Answer(Taken.STORAGE, first.end)]
    follower.disk.before = lambda *_: None
    assert (await follower.take(second))[0].taken is Taken.NOT_OPEN
    assert await follower.open(owner) == first.end
    assert (await follower.take(second))[0].taken is Taken.OK
    follower.die(random.Random(3))
    await follower.copy(owner)
    assert follower.files() == owner.files


async def test_an_owner_that_came_back_older_is_told_so(follower: FollowerNode) -> None:
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner)
    before = follower.files()
    owner.forget(1)
    owner.claim()
    follower.here.in_sync = True
    assert await follower.open(owner) is OpenRefusal.DIVERGED
    assert follower.files() == before
    assert await follower.open(owner) is OpenRefusal.DIVERGED


async def test_what_it_was_told_outlives_its_process(follower: FollowerNode) -> None:
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner)
    await follower.following.let_go(STREAM)
    follower.die()
    owner.forget(1)
    owner.claim()
    follower.here.in_sync = True
    assert await follower.open(owner) is OpenRefusal.DIVERGED


async def test_what_it_never_was_told_is_not_cut_either_while_it_is_counted(
    follower: FollowerNode,
) -> None:
    """All lost their power at once: it followed, and nobody came to tell it what is committed."""
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner, committed=False)
    follower.die(random.Random(3))
    before = segments_of(follower.files())
    owner.forget(1)
    owner.claim()
    owner.is_shown = False
    follower.here.in_sync = True
    assert await follower.open(owner) is OpenRefusal.DIVERGED
    assert segments_of(follower.files()) == before
    follower.here.in_sync = False
    await follower.copy(owner)
    assert follower.files() == owner.files


def segments_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """Indexes are made again after a loss of power."""
    return {name: data for name, data in files.items() if name.endswith(".segment")}


async def test_one_that_knows_more_and_is_not_counted_is_set_aside_and_filled_again(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner)
    before = follower.files()
    owner.forget(1)
    owner.claim()
    await follower.copy(owner)
    assert follower.files() == owner.files
    (aside,) = follower.disk.names(aside_dir(ROOT))
    assert aside.startswith(STREAM)
    assert set(follower.disk.names(aside_dir(ROOT) / aside)) == set(before)


def damage(follower: FollowerNode) -> None:
    """Change a byte of the first segment, and lose its index and the checkpoint's word for it."""
    directory = stream_dir(ROOT, STREAM)
    fd = follower.disk.open(segment_path(directory, 0))
    follower.disk.pwritev(fd, [b"\xff\xff"], 80)
    follower.disk.fdatasync(fd)
    follower.disk.close(fd)
    follower.disk.unlink(directory / f"{0:020d}.index")
    follower.disk.fsync_dir(directory)


async def a_damaged_one(follower: FollowerNode) -> OwnerLog:
    owner = an_owner(50, 600, 600, 600)
    await follower.copy(owner)
    follower.die()
    damage(follower)
    return owner


async def test_a_damaged_log_stays_as_long_as_it_is_counted_on(follower: FollowerNode) -> None:
    owner = await a_damaged_one(follower)
    before = follower.files()
    follower.here.in_sync = True
    with pytest.raises(Unavailable, match="damaged"):
        await follower.open(owner)
    assert follower.files() == before
    follower.here.in_sync = False
    await follower.copy(owner)
    assert follower.files() == owner.files


async def test_without_a_look_at_the_record_a_damaged_log_goes_that_others_count_on(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_not(*_: object) -> bool:
        return False

    owner = await a_damaged_one(follower)
    remove(monkeypatch, "the record before a damaged log is put aside", is_not)
    follower.here.in_sync = True
    assert await follower.open(owner) is None
    assert follower.files() == {}


async def test_a_chunk_that_the_index_knows_and_that_is_bad_is_damage_too(
    follower: FollowerNode,
) -> None:
    """Recovery keeps its place at an owner, which has no other copy; here there is one."""
    owner = an_owner(50, 60)
    await follower.copy(owner)
    follower.die()
    path = segment_path(stream_dir(ROOT, STREAM), 0)
    fd = follower.disk.open(path)
    follower.disk.pwritev(fd, [b"\xff"], len(owner.files[path.name]) - 1)
    follower.disk.fdatasync(fd)
    follower.here.in_sync = True
    with pytest.raises(Unavailable, match="damaged"):
        await follower.open(owner)
    follower.here.in_sync = False
    await follower.copy(owner)
    assert follower.files() == owner.files


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_chunk_that_went_bad_where_it_was_long_synced_is_damage_too(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The checkpoint says that it was synced, and the index where the next one begins."""
    if not guarded:
        remove(monkeypatch, "the checksums of a log before it counts as held", lambda _: True)
    owner = an_owner(50, 60, 70)
    await follower.copy(owner)
    await follower.following.let_go(STREAM)
    follower.die()
    fd = follower.disk.open(segment_path(stream_dir(ROOT, STREAM), 0))
    follower.disk.pwritev(fd, [b"\xff\xff"], 110)
    follower.disk.fdatasync(fd)
    await follower.copy(owner)
    assert (follower.files() == owner.files) == guarded


async def test_it_frees_what_is_published_and_begins_where_the_owner_begins(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 600, 600, 600, 600)
    await follower.copy(owner)
    owner.free(1)
    await follower.take(owner.item(None))
    await follower.following.let_go(STREAM)
    assert follower.files() == owner.files
    owner.append(600)
    await follower.copy(owner)
    assert follower.files() == owner.files


async def test_one_that_was_away_too_long_begins_with_what_the_owner_has(
    follower: FollowerNode,
) -> None:
    owner = an_owner(50, 600, 600)
    await follower.copy(owner)
    follower.die()
    owner.append(600, 600, 600, 600)
    owner.free(2)
    owner.claim()
    owner.append(70)
    await follower.copy(owner)
    assert set(follower.files()) == set(owner.files)
    assert follower.files() == owner.files
    follower.die(random.Random(5))
    await follower.copy(owner)
    assert follower.files() == owner.files


async def test_the_table_of_streams_is_bounded() -> None:
    follower = FollowerNode(stream_count_max=2)
    owners = [OwnerLog(type(STREAM)(STREAM[:-1] + digit)) for digit in "123"]
    for owner in owners:
        owner.append(50)
        await follower.copy(owner)
    assert [follower.following.find(one.stream_id) is not None for one in owners] == [
        False,
        True,
        True,
    ]
    await follower.copy(owners[0])
    assert [follower.files(one.stream_id) for one in owners] == [one.files for one in owners]
    await follower.aclose()
    assert follower.disk.open_count == 0


def test_a_piece_has_one_append_where_that_is_larger_than_a_piece() -> None:
    """Or a body could hold two of the largest, which no node takes."""
    owner, end, count = an_owner(600, 20, 600, 20), None, 0
    while (piece := owner.piece(end, size_max=1)) is not None:
        assert len(list(split_chunks(piece.data))) == 1
        end, count = piece.end, count + 1
    assert count == 4


def test_a_body_has_room_for_the_largest_append_that_settings_allow() -> None:
    limits = IngestSettings.model_fields["ingest_group_bytes_max"].metadata
    (largest,) = (one.le for one in limits if isinstance(one, Le))
    assert isinstance(largest, int)
    # What is known of producers stands before it, 100 bytes and more for each of 500,000 keys.
    assert largest + GATHERED_SIZE + 64 * MIB < BODY_SIZE_MAX
