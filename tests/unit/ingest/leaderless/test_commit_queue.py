"""Which pieces are committed next: in the order of sequences, and of their streams, whatever happens."""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.model.chunk import AppendMode
from bottomless.model.names import StreamId, Uid
from bottomless_server.ingest.leaderless.core.commit_queue import (
    CONFLICT_COUNT_MAX,
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    CommitQueue,
    Group,
    pause_ms,
)
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.ingest.leaderless.core.sealing import seal_pieces
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.leaderless.groups import GROUP_KEY_COUNT_MAX, GROUP_STREAM_COUNT_MAX
from bottomless_server.leaderless.tail_changes import Accepted
from unit.formats.examples import UID
from unit.ingest.leaderless.making import CHUNK_SIZE_MAX, IDS, an_append, waiting

COMMIT_MS = 15_000
NUMBERED = Conditions(FromProducer("p", 0, AppendMode.HIGHWATER))


def a_piece(stream: int = 0, conditions: Conditions | None = None) -> WaitingPiece:
    return pieces_of(IDS[stream], conditions)


def pieces_of(stream_id: StreamId, conditions: Conditions | None = None) -> WaitingPiece:
    append = an_append() if conditions is None else an_append(conditions=conditions)
    # Sealed without its promise, which needs numbers; what is waiting says it.
    line, _ = waiting(an_append())
    [piece] = seal_pieces(stream_id, [line], CHUNK_SIZE_MAX)
    line.append = append
    return piece


def place(pieces: Sequence[WaitingPiece], sequence: int, instance: Uid = UID) -> None:
    for number, piece in enumerate(pieces):
        piece.accepted = Accepted(instance, sequence, number, 128, 64, 1, 0)


def put(queue: CommitQueue, sequence: int, *pieces: WaitingPiece, now: int = 0) -> None:
    """An object that is put and durable at once."""
    queue.begin(sequence, pieces)
    place(pieces, sequence)
    queue.put(sequence, now)


def next_of(queue: CommitQueue, now: int = 0) -> Group:
    group = queue.next_group(now)
    assert group is not None
    return group


def test_nothing_is_committed_before_its_object_is_durable() -> None:
    queue = CommitQueue(COMMIT_MS)
    piece = a_piece()
    queue.begin(0, [piece])
    assert queue.next_group(0) is None
    assert not queue.is_empty
    place([piece], 0)
    queue.put(0, 0)

    group = next_of(queue)
    assert group == Group({IDS[0]: [piece]}, sequence=0, settled=1)
    queue.done(group.pieces)
    assert queue.is_empty
    assert queue.next_group(0) is None


def test_an_object_that_is_durable_first_waits_for_the_earlier_one() -> None:
    queue = CommitQueue(COMMIT_MS)
    early, late = a_piece(0), a_piece(1)
    queue.begin(0, [early])
    put(queue, 1, late)
    assert queue.next_group(0) is None
    place([early], 0)
    queue.put(0, 0)

    assert next_of(queue).pieces == [early, late]


def test_an_object_that_fails_holds_up_nobody() -> None:
    queue = CommitQueue(COMMIT_MS)
    queue.begin(0, [a_piece(0)])
    late = a_piece(1)
    put(queue, 1, late)
    queue.fail(0, 0)

    assert next_of(queue).pieces == [late]
    assert queue.first_undecided(7) == 1


def test_what_is_settled_is_told_by_what_is_left_to_decide() -> None:
    queue = CommitQueue(COMMIT_MS)
    many = [pieces_of(a_stream_id(number)) for number in range(GROUP_STREAM_COUNT_MAX + 1)]
    put(queue, 4, *many)
    queue.begin(6, [a_piece()])

    first = next_of(queue)
    assert (len(first.parts), first.sequence, first.settled) == (GROUP_STREAM_COUNT_MAX, 4, 4)
    queue.done(first.pieces)
    last = next_of(queue)
    assert (len(last.parts), last.sequence, last.settled) == (1, 4, 6)


def test_what_may_be_sealed_anew_is_not_settled_before_that_is_known() -> None:
    queue = CommitQueue(COMMIT_MS)
    put(queue, 0, a_piece(0, NUMBERED))

    group = next_of(queue)
    assert group.settled == 0
    queue.done(group.pieces)
    assert queue.needs_settling(0)
    assert not queue.needs_settling(1)


def test_a_group_that_meets_others_is_tried_once_more_then_its_halves() -> None:
    queue = CommitQueue(COMMIT_MS)
    pieces = [a_piece(stream) for stream in range(4)]
    put(queue, 0, *pieces)

    tried = [next_of(queue).pieces]
    for _ in range(4):
        queue.conflict(latest(tried), 0, 0.5)
        tried.append(next_of(queue).pieces)
    assert tried == [pieces, pieces, pieces[:2], pieces[:1], pieces[1:2]]


def latest(tried: list[list[WaitingPiece]]) -> Group:
    """The group that was given last, as it was given."""
    pieces = tried[-1]
    parts = {piece.stream_id: [piece] for piece in pieces}
    return Group(parts, 0, 0, tried=len(tried) > 1)


def test_a_stream_that_meets_others_waits_and_holds_up_nobody() -> None:
    queue = CommitQueue(COMMIT_MS)
    hot, calm = a_piece(0), a_piece(1)
    put(queue, 0, hot, calm)

    def hot_meets_others(now: int) -> list[WaitingPiece]:
        committed: list[WaitingPiece] = []
        while (group := queue.next_group(now)) is not None:
            if hot in group.pieces:
                queue.conflict(group, now, 0.0)
            else:
                queue.done(group.pieces)
                committed += group.pieces
        return committed

    assert hot_meets_others(0) == [calm]
    assert queue.ready_at() == PAUSE_MS_MIN
    later = a_piece(0)
    put(queue, 1, later, now=1)
    assert queue.next_group(1) is None
    group = next_of(queue, PAUSE_MS_MIN)
    assert (group.pieces, group.sequence) == ([hot, later], 0)


def test_after_so_many_conflicts_a_stream_is_refused_and_later_pieces_go_on() -> None:
    queue = CommitQueue(COMMIT_MS)
    hot = a_piece(0)
    put(queue, 0, hot)
    now, refused = 0, list[WaitingPiece]()
    for number in range(2 * CONFLICT_COUNT_MAX):
        if refused:
            break
        refused = queue.conflict(next_of(queue, now), now, 1.0).pieces
        now += PAUSE_MS_MAX
        if number == 3:
            later = a_piece(0)
            put(queue, 1, later)

    assert refused == [hot]
    assert next_of(queue, now).pieces == [later]
    assert queue.first_undecided(9) == 1


def test_a_piece_that_is_sealed_anew_keeps_its_place() -> None:
    queue = CommitQueue(COMMIT_MS)
    first, second = a_piece(0, NUMBERED), a_piece(0, NUMBERED)
    put(queue, 0, first, second)
    again = a_piece(0, NUMBERED)

    queue.trim(first, again)
    assert queue.next_group(0) is None
    assert queue.first_undecided(9) == 0
    put(queue, 3, again)
    group = next_of(queue)
    assert (group.pieces, group.sequence) == ([again, second], 0)
    queue.done(group.pieces)
    assert queue.is_empty


def test_later_pieces_go_on_where_one_that_is_sealed_anew_finds_no_object() -> None:
    for forgotten in (False, True):
        queue = CommitQueue(COMMIT_MS)
        first, second, again = a_piece(0, NUMBERED), a_piece(0), a_piece(0, NUMBERED)
        put(queue, 0, first, second)
        queue.trim(first, again)
        if forgotten:
            queue.forget([again])
        else:
            queue.begin(1, [again])
            queue.fail(1, 0)

        assert next_of(queue).pieces == [second]


def test_what_waits_for_too_long_is_refused_but_not_what_may_be_stored() -> None:
    queue = CommitQueue(COMMIT_MS)
    under_way, late, early = a_piece(0), a_piece(1), a_piece(2)
    put(queue, 0, under_way, late, now=0)
    group = Group({IDS[0]: [under_way]}, 0, 0)
    put(queue, 1, early, now=1)

    assert queue.expire(COMMIT_MS, group).pieces == [late]
    assert queue.expire(COMMIT_MS).pieces == [under_way]
    assert next_of(queue).pieces == [early]


def test_everything_comes_back_in_its_order_when_the_instance_is_lost() -> None:
    queue = CommitQueue(COMMIT_MS)
    first, second, third, fourth = (a_piece(0, NUMBERED) for _ in range(4))
    again = a_piece(0, NUMBERED)
    put(queue, 0, first, second)
    queue.trim(first, again)
    queue.begin(1, [third])
    queue.begin(2, [again, fourth])

    assert queue.give_up() == [again, second, third, fourth]
    assert queue.is_empty
    assert queue.next_group(0) is None


def a_stream_id(number: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0e{number:04x}")


def of_producers(stream_id: StreamId, count: int) -> list[WaitingPiece]:
    return [
        pieces_of(stream_id, Conditions(FromProducer(f"p{number}", 0, AppendMode.STRICT, 0)))
        for number in range(count)
    ]


def test_a_group_has_no_more_keys_than_one_exec_watches() -> None:
    queue = CommitQueue(COMMIT_MS)
    pieces = of_producers(IDS[0], GROUP_KEY_COUNT_MAX + 5)
    put(queue, 0, *pieces)

    first = next_of(queue)
    assert (first.pieces, first.settled) == (pieces[: GROUP_KEY_COUNT_MAX - 1], 0)
    queue.done(first.pieces)
    last = next_of(queue)
    assert (last.pieces, last.settled) == (pieces[GROUP_KEY_COUNT_MAX - 1 :], 1)


@given(st.integers(0, 20), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_short_and_not_the_same_for_all(conflicts: int, chance: float) -> None:
    assert PAUSE_MS_MIN <= pause_ms(conflicts, chance) <= PAUSE_MS_MAX


class Play:
    """A queue to which anything happens that may, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queue = CommitQueue(1_000)
        self.now = 0
        self.sequence = 0
        self.flights: dict[int, list[WaitingPiece]] = {}
        self.begun: dict[StreamId, list[WaitingPiece]] = {}
        """The pieces of each stream in the order of their appends, as they are now."""
        self.again: list[WaitingPiece] = []
        self.committed: dict[StreamId, list[WaitingPiece]] = {}
        self.gone = set[WaitingPiece]()
        self.put_at: dict[WaitingPiece, int] = {}

    def begin(self) -> None:
        fresh = [
            a_piece(self.random.randrange(3), self.random.choice([None, NUMBERED]))
            for _ in range(self.random.randint(0 if self.again else 1, 3))
        ]
        pieces, self.again = [*self.again, *fresh], []
        for piece in fresh:
            self.begun.setdefault(piece.stream_id, []).append(piece)
        self.queue.begin(self.sequence, pieces)
        self.flights[self.sequence] = pieces
        self.sequence += self.random.randint(1, 2)

    def end(self) -> None:
        if not self.flights:
            return
        sequence = self.random.choice(sorted(self.flights))
        pieces = self.flights.pop(sequence)
        if self.random.random() < 0.2:
            self.queue.fail(sequence, self.now)
            self.gone.update(pieces)
            return
        place(pieces, sequence)
        self.queue.put(sequence, self.now)

    def commit(self) -> None:
        group = self.queue.next_group(self.now)
        if group is None:
            return
        assert len(group.parts) <= GROUP_STREAM_COUNT_MAX
        if self.random.random() < 0.3:
            refused = self.queue.conflict(group, self.now, self.random.random()).pieces
            self.gone.update(refused)
            return
        undecided: list[WaitingPiece] = []
        done: list[WaitingPiece] = []
        for stream_id, pieces in group.parts.items():
            for place_of, piece in enumerate(pieces):
                numbered = piece.appends[0].append.conditions.numbered
                if numbered and self.random.random() < 0.3:
                    self.seal_anew(piece)
                    undecided += pieces[place_of + 1 :]
                    for later in pieces[place_of + 1 :]:
                        self.seal_anew(later)
                    break
                done.append(piece)
                self.committed.setdefault(stream_id, []).append(piece)
        self.queue.done(done)
        if not undecided:
            # All below it is decided: nothing of that is committed after this.
            for pieces in self.committed.values():
                assert all(one.accepted for one in pieces)
            assert group.settled <= self.queue.first_undecided(self.sequence)

    def seal_anew(self, piece: WaitingPiece) -> None:
        again = a_piece(IDS.index(piece.stream_id), NUMBERED)
        self.queue.trim(piece, again)
        ours = self.begun[piece.stream_id]
        ours[ours.index(piece)] = again
        self.again.append(again)

    def expire(self) -> None:
        self.gone.update(self.queue.expire(self.now).pieces)

    def lose(self) -> None:
        found = self.queue.give_up()
        # What came back before and was not put since.
        found += [piece for piece in self.again if piece not in found]
        left = {
            stream_id: [one for one in pieces if self.is_left(one)]
            for stream_id, pieces in self.begun.items()
        }
        for stream_id, pieces in left.items():
            assert [one for one in found if one.stream_id == stream_id] == pieces
        self.again, self.flights, self.queue = found, {}, CommitQueue(1_000)

    def is_left(self, piece: WaitingPiece) -> bool:
        committed = self.committed.get(piece.stream_id, [])
        return piece not in committed and piece not in self.gone

    def play(self, steps: int) -> None:
        acts: list[Callable[[], None]] = [self.begin, self.end, self.end, self.commit, self.commit]
        for _ in range(steps):
            self.now += self.random.randrange(100)
            chance = self.random.random()
            (self.expire if chance < 0.03 else self.random.choice(acts))()
            if chance > 0.98:
                self.lose()
            self.check()
        while self.again or self.flights:
            if self.again:
                self.begin()
            self.end()
        self.now += 10**6
        while not self.queue.is_empty:
            self.now += PAUSE_MS_MAX
            self.commit()
            if self.again:
                self.begin()
            while self.flights:
                self.end()
            self.check()

    def check(self) -> None:
        for stream_id, pieces in self.committed.items():
            there = [one for one in self.begun[stream_id] if one in pieces]
            assert pieces == there, "a stream's pieces are committed out of order, or twice"


@given(st.integers(0, 2**32))
def test_pieces_are_committed_once_and_in_the_order_of_their_stream(seed: int) -> None:
    Play(seed).play(60)


def _all_that_ended(flights: Iterable[Any]) -> list[Any]:
    return [flight for flight in flights if flight.ended]


def _all_that_lie_somewhere(pieces: Sequence[WaitingPiece], placed: Any) -> list[WaitingPiece]:
    return [piece for piece in pieces if piece in placed]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("objects are committed in the order of their sequences", _all_that_ended),
        ("a stream's pieces stay in their order", _all_that_lie_somewhere),
    ],
)
def test_order_is_lost_without_its_guard(
    name: str, variant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: one seed of some tens is enough."""
    remove(monkeypatch, name, variant)

    def play() -> None:
        for seed in range(50):
            Play(seed).play(60)

    with pytest.raises(AssertionError):
        play()
