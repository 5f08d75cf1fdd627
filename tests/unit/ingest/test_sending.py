"""What an owner sends next to one node: stories of the pure core, and any order of events."""

import random
from collections.abc import Callable

import pytest
from support.guards import remove

from bottomless.model.names import StreamId
from bottomless_server.node.core.sending import (
    BOUNDS_SECONDS,
    CATCHING_UP_MAX,
    ERRAND_COUNT_MAX,
    GATHERING_SECONDS,
    IN_FLIGHT_MAX,
    RIPE_COUNT,
    RIPE_SIZE,
    Sending,
)
from bottomless_server.node.core.sends import (
    Action,
    Event,
    Memory,
    News,
    Open,
    Part,
    Piece,
    Read,
    Send,
    Told,
)
from bottomless_server.node.core.sent_stream import CATCH_UP_SIZE, SentStream
from bottomless_server.protocol.replica import NOWHERE, Answer, Place, Taken
from unit.ingest.harness import STREAM

FIRST = Piece(Place(0, 64), True, 0, b"a" * 10)
SECOND = Piece(Place(0, 74), False, 0, b"b" * 10)
THIRD = Piece(Place(0, 84), False, 0, b"b" * 10)
NEXT = Piece(Place(2, 64), True, 84, b"c" * 10)
LARGE = Piece(Place(0, 74), False, 0, bytes(RIPE_SIZE))
LOG = [FIRST, SECOND, NEXT]
OTHERS = [StreamId(STREAM[:-2] + f"{number:02x}") for number in range(40)]


def sending(log_end: Place | None = None, size_max: int = 1_000) -> Sending:
    made = Sending(Memory(size_max))
    made.follow(STREAM, 1, log_end, Told(), 0.0)
    return made


def only(actions: list[Action]) -> Action:
    (action,) = actions
    return action


def opened(made: Sending, end: Place | None = None, now: float = 0.0) -> list[Event]:
    action = only(made.next_actions(now))
    assert isinstance(action, Open)
    return made.opened(action, None, end, now)


def pieces_of(count: int, size: int) -> list[Piece]:
    """A log of one segment, in pieces of so many bytes."""
    data = bytes(size)
    ends = [64 + number * size for number in range(count)]
    return [Piece(Place(0, end), end == 64, 0, data) for end in ends]


def sent(made: Sending, now: float = 0.0) -> tuple[Send, Part]:
    action = only(made.next_actions(now))
    assert isinstance(action, Send)
    (part,) = action.parts
    return action, part


def test_a_log_is_opened_read_sent_and_told_of() -> None:
    made = sending(FIRST.end)
    assert opened(made) == [Event(News.HAS, STREAM, None)]
    read = only(made.next_actions(0))
    assert read == Read(STREAM, 1, None)
    made.was_read(read, FIRST, 0)
    body, part = sent(made)
    assert (part.piece, part.epoch) == (FIRST, 1)
    assert made.silent_since(STREAM) == 0
    assert made.answered(body, [Answer(Taken.OK, FIRST.end)], 3) == [
        Event(News.HAS, STREAM, FIRST.end)
    ]
    assert made.silent_since(STREAM) is None
    assert made.next_actions(3) == []
    made.check()


def test_a_node_that_is_to_be_asked_later_is_asked_then() -> None:
    made = Sending(Memory(1_000))
    made.follow(STREAM, 1, FIRST.end, Told(), 0.0, pause=1.0)
    assert made.next_actions(0.9) == []
    assert made.next_time(0.9) == 1.0
    opened(made, now=1.0)
    made.check()


def test_what_was_just_written_is_sent_from_memory_one_after_the_other() -> None:
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    made.offer(STREAM, NEXT, 1)
    body, part = sent(made, 1)
    assert part.piece == SECOND
    assert made.next_actions(1) == []
    made.answered(body, [Answer(Taken.OK, SECOND.end)], 1)
    assert sent(made, 1)[1].piece == NEXT
    made.check()


def test_without_room_in_memory_it_is_read_from_the_disk_once_it_is_there() -> None:
    made = sending(FIRST.end, size_max=15)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    made.offer(STREAM, NEXT, 1)
    read = only(made.next_actions(1))
    assert read == Read(STREAM, 1, FIRST.end)
    made.was_read(read, None, 1)
    assert made.next_actions(1) == []
    made.tell(STREAM, Told(4, 0, 0))
    again = only(made.next_actions(1))
    assert isinstance(again, Read)
    made.was_read(again, SECOND, 1)
    body, ahead = made.next_actions(1)
    assert isinstance(body, Send)
    assert [part.piece for part in body.parts] == [SECOND]
    assert ahead == Read(STREAM, 1, SECOND.end)
    made.check()


def test_bounds_go_with_what_is_sent_and_alone_after_a_while() -> None:
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.tell(STREAM, Told(2, 0, 0))
    made.offer(STREAM, SECOND, 1)
    body, part = sent(made, 1)
    assert part.told == Told(2, 0, 0)
    made.answered(body, [Answer(Taken.OK, SECOND.end)], 1)
    made.tell(STREAM, Told(3, 0, 0))
    assert made.next_actions(1) == []
    assert made.next_time(1) == 1 + BOUNDS_SECONDS
    alone = sent(made, 1 + BOUNDS_SECONDS)[1]
    assert (alone.piece, alone.told) == (None, Told(3, 0, 0))


@pytest.mark.parametrize("refusal", ["fenced", "diverged"])
def test_a_refusal_is_told_and_nothing_more_is_sent(refusal: str) -> None:
    made = sending(FIRST.end)
    action = only(made.next_actions(0))
    assert isinstance(action, Open)
    assert made.opened(action, refusal, None, 0) == [Event(News(refusal), STREAM)]
    made.offer(STREAM, SECOND, 1)
    made.tell(STREAM, Told(9, 9, 9))
    assert made.next_actions(100) == []


def test_who_is_fenced_by_an_answer_hears_of_it_too() -> None:
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    body, _ = sent(made, 1)
    assert made.answered(body, [Answer(Taken.FENCED, NOWHERE)], 1) == [Event(News.FENCED, STREAM)]
    made.check()


def test_a_log_that_was_let_go_is_opened_again_at_once() -> None:
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    body, _ = sent(made, 1)
    made.answered(body, [Answer(Taken.NOT_OPEN, NOWHERE)], 1)
    opened(made, FIRST.end, now=1)
    assert sent(made, 1)[1].piece == SECOND


def test_after_a_failure_nobody_counts_on_where_the_other_log_ended() -> None:
    """It may be put aside by the opening that comes next, whose answer may be lost."""
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    body, _ = sent(made, 1)
    assert made.failed(body, 1) == [Event(News.UNKNOWN, STREAM)]
    again = only(made.next_actions(10))
    assert made.failed(again, 10) == [Event(News.UNKNOWN, STREAM)]
    assert made.end_of(STREAM) is None


def test_after_a_failure_one_thing_is_tried_before_all_others() -> None:
    made = sending(FIRST.end)
    for one in OTHERS:
        made.follow(one, 1, None, Told(), 0)
    actions = made.next_actions(0)
    assert len(actions) == ERRAND_COUNT_MAX
    for action in actions:
        made.failed(action, 0)
    assert made.next_actions(0) == []
    later = made.next_time(0)
    assert later is not None
    probe = only(made.next_actions(later))
    assert isinstance(probe, Open)
    made.opened(probe, None, None, later)
    assert len(made.next_actions(later + 10)) > 1
    made.check()


def following(count: int) -> Sending:
    """Some streams, whose logs are open there and have everything."""
    made = Sending(Memory(10**8))
    for one in OTHERS[:count]:
        made.follow(one, 1, FIRST.end, Told(), 0)
    serve(made)
    return made


def test_bodies_on_their_way_are_four() -> None:
    made = following(16)
    for number, one in enumerate(OTHERS[:16]):
        made.offer(one, LARGE, 0)
        assert len(made.next_actions(0)) == (number < IN_FLIGHT_MAX)
    made.check()


def test_two_bodies_with_what_was_missed_leave_room_for_new_rounds() -> None:
    made = following(16)
    for number, one in enumerate(OTHERS[:6]):
        made.offer(one, SECOND, 0)
        made.offer(one, THIRD, 0)
        made.follow(one, 1, THIRD.end, Told(), 0)
        serve_openings(made)
        bodies = [one for one in made.next_actions(0) if isinstance(one, Send)]
        assert len(bodies) == (number < CATCHING_UP_MAX)
        assert all(body.catches_up for body in bodies)
    made.offer(OTHERS[10], SECOND, 0)
    body = next(one for one in made.next_actions(0) if isinstance(one, Send))
    assert [part.stream_id for part in body.parts] == [OTHERS[10]]
    assert not body.catches_up
    made.check()


def test_small_rounds_gather_while_others_are_on_their_way() -> None:
    made = following(4)
    made.offer(OTHERS[0], SECOND, 0)
    first = only(made.next_actions(0))
    assert isinstance(first, Send)
    for one in OTHERS[1:3]:
        made.offer(one, SECOND, 0)
        assert made.next_actions(0) == []
    assert made.next_time(0) == GATHERING_SECONDS
    made.answered(first, [Answer(Taken.OK, SECOND.end)], 0.01)
    second = only(made.next_actions(0.01))
    assert isinstance(second, Send)
    assert [part.stream_id for part in second.parts] == OTHERS[1:3]
    made.offer(OTHERS[3], SECOND, 0.02)
    assert made.next_actions(0.02) == []
    later = 0.02 + GATHERING_SECONDS
    assert made.next_time(0.02) == later
    assert isinstance(only(made.next_actions(later)), Send)
    made.check()


def test_many_rounds_and_large_ones_gather_no_more() -> None:
    made = following(40)
    made.offer(OTHERS[0], SECOND, 0)
    assert len(made.next_actions(0)) == 1
    for one in OTHERS[1:RIPE_COUNT]:
        made.offer(one, SECOND, 0)
    assert made.next_actions(0) == []
    made.offer(OTHERS[RIPE_COUNT], SECOND, 0)
    body = only(made.next_actions(0))
    assert isinstance(body, Send)
    assert len(body.parts) == RIPE_COUNT
    made.offer(OTHERS[-1], LARGE, 0)
    assert len(made.next_actions(0)) == 1
    made.check()


def test_the_own_log_is_read_ahead_while_a_body_is_on_its_way() -> None:
    log = pieces_of(6, CATCH_UP_SIZE // 2)
    made = sending(log[-1].end, size_max=10**9)
    opened(made)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, log[0], 0)
    body, read = made.next_actions(0)
    assert isinstance(body, Send)
    for piece in log[1:4]:
        assert read == Read(STREAM, 1, log[log.index(piece) - 1].end)
        assert isinstance(read, Read)
        made.was_read(read, piece, 0)
        made.check()
        actions = made.next_actions(0)
        assert len(actions) == (piece is not log[3])
        read = actions[0] if actions else read
    made.answered(body, [Answer(Taken.OK, log[0].end)], 0)
    body, read = made.next_actions(0)
    assert isinstance(body, Send)
    assert [part.piece for part in body.parts] == log[1:3]
    assert read == Read(STREAM, 1, log[3].end)
    made.check()


def reading_ahead() -> tuple[Sending, Send, Read]:
    """The first piece of a log is on its way, and the second is being read."""
    made = sending(NEXT.end)
    opened(made)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, FIRST, 0)
    body, ahead = made.next_actions(0)
    assert isinstance(body, Send)
    assert isinstance(ahead, Read)
    return made, body, ahead


def test_what_was_read_ahead_of_a_body_that_was_refused_is_forgotten() -> None:
    made, body, ahead = reading_ahead()
    made.was_read(ahead, SECOND, 0)
    made.answered(body, [Answer(Taken.STORAGE, NOWHERE)], 0)
    assert only(made.next_actions(10)) == Read(STREAM, 1, None)
    made.check()


def test_what_is_read_ahead_while_a_body_is_refused_is_forgotten() -> None:
    made, body, ahead = reading_ahead()
    made.answered(body, [Answer(Taken.GAP, SECOND.end)], 0)
    made.was_read(ahead, SECOND, 0)
    assert only(made.next_actions(10)) == Read(STREAM, 1, SECOND.end)
    made.check()


def test_an_answer_counts_no_more_once_the_own_log_could_not_be_read() -> None:
    made, body, ahead = reading_ahead()
    assert made.failed(ahead, 0) == [Event(News.UNKNOWN, STREAM)]
    assert made.next_actions(10) == []
    assert made.answered(body, [Answer(Taken.OK, FIRST.end)], 10) == []
    assert made.end_of(STREAM) is None
    opened(made, FIRST.end, now=10)
    made.check()


def test_of_several_parts_of_one_stream_the_first_refusal_counts() -> None:
    made, body, ahead = reading_ahead()
    made.was_read(ahead, SECOND, 0)
    made.answered(body, [Answer(Taken.OK, FIRST.end)], 0)
    both = next(one for one in made.next_actions(0) if isinstance(one, Send))
    twice = Send((*both.parts, *both.parts), both.catches_up)
    answers = [Answer(Taken.STORAGE, FIRST.end), Answer(Taken.OK, SECOND.end)]
    assert made.answered(twice, answers, 0) == [Event(News.FAILED, STREAM)]
    assert made.end_of(STREAM) == FIRST.end


def test_what_finds_no_room_ahead_takes_none_from_what_was_offered() -> None:
    memory = Memory(40)
    made = Sending(memory)
    made.follow(STREAM, 1, SECOND.end, Told(), 0.0)
    opened(made)
    made.offer(STREAM, NEXT, 0)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, FIRST, 0)
    body, ahead = made.next_actions(0)
    assert isinstance(body, Send)
    assert isinstance(ahead, Read)
    made.was_read(ahead, SECOND, 0)
    assert made.next_actions(0) == []
    assert memory.held == 20
    made.answered(body, [Answer(Taken.OK, FIRST.end)], 0)
    assert only(made.next_actions(0)) == Read(STREAM, 1, FIRST.end)
    made.check()


def an_answer_from_before(made: Sending) -> Sending:
    """One that tells of a log which was put aside since."""
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    body, _ = sent(made, 1)
    made.follow(STREAM, 2, SECOND.end, Told(), 2)
    opened(made, FIRST.end, now=2)
    made.answered(body, [Answer(Taken.OK, SECOND.end)], 2)
    return made


def test_an_answer_to_what_was_sent_before_an_opening_means_nothing() -> None:
    made = an_answer_from_before(sending(FIRST.end))
    assert made.end_of(STREAM) == FIRST.end
    assert isinstance(only(made.next_actions(2)), Read)


def test_an_answer_to_what_was_sent_before_a_stream_was_left_means_nothing() -> None:
    made = sending(FIRST.end)
    opened(made, FIRST.end)
    made.offer(STREAM, SECOND, 1)
    body, _ = sent(made, 1)
    made.leave(STREAM)
    made.follow(STREAM, 2, SECOND.end, Told(), 2)
    assert isinstance(only(made.next_actions(2)), Open)
    assert made.answered(body, [Answer(Taken.OK, SECOND.end)], 3) == []
    assert made.end_of(STREAM) is None


def test_an_empty_log_that_may_not_begin_with_a_segment_is_opened_anew() -> None:
    """More was published since it was opened, and its owner would send the same for ever."""
    made = sending(NEXT.end)
    opened(made)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, NEXT, 0)
    body, _ = sent(made)
    assert made.answered(body, [Answer(Taken.GAP, NOWHERE)], 1) == [Event(News.UNKNOWN, STREAM)]
    assert isinstance(only(made.next_actions(10)), Open)
    made.check()


def test_without_its_session_an_answer_from_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "the session of an answer", lambda *_: True)
    assert an_answer_from_before(sending(FIRST.end)).end_of(STREAM) == SECOND.end


@pytest.mark.parametrize("seed", range(10))
def test_in_any_order_of_events_the_other_log_comes_to_its_end(seed: int) -> None:
    """Requests fail, the other node forgets and loses its end, and own writes go on meanwhile."""
    chance = random.Random(seed)
    world = World(chance)
    for _ in range(300):
        chance.choice([world.write, world.begin, world.begin, world.end, world.end, world.lose])()
        world.made.check()
        world.now += chance.random() / 10
    world.calm = True
    for _ in range(2_000):
        if world.there == len(world.pieces) and world.made.silent_since(STREAM) is None:
            break
        world.now += 0.1
        world.begin()
        world.end()
    assert world.there == len(world.pieces)
    assert world.memory.held == 0 or world.under_way


class World:
    """One stream, a log here and one there, which hold the first so many pieces."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.memory = Memory(40)
        self.made = Sending(self.memory)
        self.made.follow(STREAM, 1, None, Told(), 0)
        self.pieces: list[Piece] = []
        self.there = 0
        self.open = False
        self.under_way: list[Action] = []
        self.now = 0.0
        self.calm = False

    def write(self) -> None:
        last = self.pieces[-1].end if self.pieces else None
        number = len(self.pieces)
        if last is None or self.chance.random() < 0.2:
            before = 0 if last is None else last.position
            piece = Piece(Place(number, 64), True, before, b"x" * 10)
        else:
            piece = Piece(last, False, 0, b"x" * 10)
        self.pieces.append(piece)
        self.made.offer(STREAM, piece, self.now)
        self.made.tell(STREAM, Told(number, 0, 0))

    def begin(self) -> None:
        self.under_way += self.made.next_actions(self.now)

    def lose(self) -> None:
        """The other process dies, with what it has not synced: nothing that it answered."""
        self.open = False

    def end(self) -> None:
        if not self.under_way:
            return
        action = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        arrives = self.calm or self.chance.random() < 0.8
        answered = self.calm or self.chance.random() < 0.8
        finish = self._do(action) if arrives else None
        if finish is None or not answered:
            self.made.failed(action, self.now)
        else:
            finish()

    def _do(self, action: Action) -> Callable[[], object]:
        if isinstance(action, Open):
            self.open = True
            end = self.pieces[self.there - 1].end if self.there else None
            return lambda: self.made.opened(action, None, end, self.now)
        if isinstance(action, Read):
            ends = [None, *(piece.end for piece in self.pieces)]
            after = self.pieces[ends.index(action.end) :]
            return lambda: self.made.was_read(action, after[0] if after else None, self.now)
        answers = [Answer(self._take(part), self._end()) for part in action.parts]
        return lambda: self.made.answered(action, answers, self.now)

    def _take(self, part: Part) -> Taken:
        if not self.open:
            return Taken.NOT_OPEN
        if part.piece is not None and part.piece in self.pieces[self.there :]:
            if part.piece != self.pieces[self.there]:
                return Taken.GAP
            self.there += 1
        return Taken.OK

    def _end(self) -> Place:
        return self.pieces[self.there - 1].end if self.there else NOWHERE


def two_nodes(size_max: int) -> tuple[Memory, Sending, Sending]:
    """One that answers and one that is dead, with forty logs open at both."""
    memory = Memory(size_max)
    made = Sending(memory), Sending(memory)
    for one in made:
        for stream_id in OTHERS:
            one.follow(stream_id, 1, FIRST.end, Told(), 0)
        serve(one)
    return memory, *made


def serve_openings(made: Sending) -> None:
    """Open logs there, empty, and have the first piece of the own ones read."""
    for action in made.next_actions(0):
        if isinstance(action, Open):
            made.opened(action, None, None, 0)
    for action in made.next_actions(0):
        if isinstance(action, Read) and action.end is None:
            made.was_read(action, FIRST, 0)


def serve(made: Sending, piece: Piece | None = None, now: float = 0.0) -> None:
    """Answer everything at once; what is read of the own log is this piece."""
    while actions := made.next_actions(now):
        for action in actions:
            if isinstance(action, Open):
                made.opened(action, None, FIRST.end, now)
            elif isinstance(action, Read):
                made.was_read(action, piece, now)
            else:
                ends = [FIRST.end if one.piece is None else one.piece.end for one in action.parts]
                made.answered(action, [Answer(Taken.OK, end) for end in ends], now)


def fill(alive: Sending, dead: Sending) -> None:
    """Each log but the last grows once, and the dead node takes nothing of it."""
    for stream_id in OTHERS[:-1]:
        dead.offer(stream_id, SECOND, 0)
        alive.offer(stream_id, SECOND, 0)
        serve(alive)


def test_a_node_that_does_not_answer_leaves_room_for_the_others() -> None:
    memory, alive, dead = two_nodes(100)
    fill(alive, dead)
    assert memory.held <= 50
    large = Piece(FIRST.end, False, 0, b"c" * 60)
    alive.offer(OTHERS[-1], large, 0)
    serve(alive)
    assert alive.end_of(OTHERS[-1]) == large.end
    for made in (alive, dead):
        made.check()


def test_without_its_guard_all_memory_is_kept_for_a_node_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "room for nodes that take what is sent", lambda *_: True)
    memory, alive, dead = two_nodes(100)
    fill(alive, dead)
    assert memory.held > 100


def test_what_is_larger_than_all_memory_passes_before_what_comes_later() -> None:
    made = Sending(Memory(100))
    for stream_id in OTHERS[:3]:
        made.follow(stream_id, 1, FIRST.end, Told(), 0)
    serve(made)
    made.offer(OTHERS[0], SECOND, 0)
    body = only(made.next_actions(0))
    assert isinstance(body, Send)
    large = Piece(FIRST.end, False, 0, b"c" * 200)
    made.offer(OTHERS[1], large, 0)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, large, 0)
    made.offer(OTHERS[2], SECOND, 0)
    # It is read of the disk too, after the large one.
    serve(made, SECOND)
    assert made.end_of(OTHERS[2]) == FIRST.end
    made.answered(body, [Answer(Taken.OK, SECOND.end)], 0)
    serve(made, large, 1)
    assert made.end_of(OTHERS[1]) == large.end
    serve(made, SECOND, 2)
    assert made.end_of(OTHERS[2]) == SECOND.end
    made.check()


def test_a_log_that_is_left_keeps_no_other_from_its_room() -> None:
    made = Sending(Memory(100))
    for stream_id in OTHERS[:3]:
        made.follow(stream_id, 1, FIRST.end, Told(), 0)
    serve(made)
    made.offer(OTHERS[0], SECOND, 0)
    assert isinstance(only(made.next_actions(0)), Send)
    large = Piece(FIRST.end, False, 0, b"c" * 200)
    made.offer(OTHERS[1], large, 0)
    read = only(made.next_actions(0))
    assert isinstance(read, Read)
    made.was_read(read, large, 0)
    made.leave(OTHERS[1])
    made.offer(OTHERS[2], SECOND, 0)
    serve(made)
    serve(made, now=GATHERING_SECONDS)
    assert made.end_of(OTHERS[2]) == SECOND.end
    made.check()


def test_only_streams_with_something_to_do_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of which nothing but bounds is to be told, and later, cost nothing when a round of one is sent."""
    made = Sending(Memory(1_000))
    for stream_id in OTHERS:
        made.follow(stream_id, 1, FIRST.end, Told(), 0)
    serve(made)
    for number, stream_id in enumerate(OTHERS):
        made.tell(stream_id, Told(number + 1, 0, 0))
    assert not made.next_actions(0.1)
    looked_at: list[StreamId] = []
    next_parts = SentStream.next_parts

    def noted(stream: SentStream, now: float, bounds_seconds: float) -> list[Part]:
        looked_at.append(stream.stream_id)
        return next_parts(stream, now, bounds_seconds)

    monkeypatch.setattr(SentStream, "next_parts", noted)
    made.offer(OTHERS[3], SECOND, 0.2)
    action = only(made.next_actions(0.2))
    assert isinstance(action, Send)
    assert [part.stream_id for part in action.parts] == looked_at == [OTHERS[3]]
    # Nor while it is on its way, or when the same bounds are told once more.
    made.tell(OTHERS[4], Told(5, 0, 0))
    assert not made.next_actions(0.3)
    assert looked_at == [OTHERS[3]]
    made.check()
    # The bounds of the others are told when their time has come, and nobody has said anything.
    assert made.next_time(0.3) == BOUNDS_SECONDS
    told = only(made.next_actions(BOUNDS_SECONDS))
    assert isinstance(told, Send)
    assert {part.stream_id for part in told.parts} == {*OTHERS} - {OTHERS[3]}


@pytest.mark.parametrize("seed", range(10))
def test_whoever_asks_when_told_to_sees_all_streams_to_their_end(seed: int) -> None:
    """Streams are written and told of, requests fail; and what is to be done is asked for after an event
    and at the time that was named, never else."""
    chance = random.Random(seed)
    several = Several(chance)
    for _ in range(400):
        several.do_anything()
        several.begin()
        if chance.random() < 0.3:
            several.go_on()
    several.come_to_rest()
    assert several.there == {stream_id: len(log) for stream_id, log in several.logs.items()}
    assert several.heard == several.told


class Several:
    """Some streams, each with a log here, of which the other node has the first so many pieces."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.made = Sending(Memory(200))
        self.now = 0.0
        self.logs: dict[StreamId, list[Piece]] = {stream_id: [] for stream_id in OTHERS[:6]}
        self.there = dict.fromkeys(self.logs, 0)
        self.told = dict.fromkeys(self.logs, Told())
        self.heard = dict.fromkeys(self.logs, Told())
        self.under_way: list[Action] = []
        for stream_id in self.logs:
            self.made.follow(stream_id, 1, None, Told(), 0.0, pause=chance.choice((0.0, 0.7)))

    def do_anything(self) -> None:
        stream_id = self.chance.choice(list(self.logs))
        match self.chance.randrange(4):
            case 0:
                self.write(stream_id)
            case 1:
                self.tell(stream_id)
            case _ if self.under_way:
                number = self.chance.randrange(len(self.under_way))
                self.finish(number, works=self.chance.random() < 0.8)
            case _:
                pass

    def write(self, stream_id: StreamId) -> None:
        log = self.logs[stream_id]
        log.append(Piece(log[-1].end if log else Place(0, 64), not log, 0, b"x" * 10))
        self.made.offer(stream_id, log[-1], self.now)

    def tell(self, stream_id: StreamId) -> None:
        self.told[stream_id] = Told(len(self.logs[stream_id]), 0, 0)
        self.made.tell(stream_id, self.told[stream_id])

    def begin(self) -> None:
        self.under_way += self.made.next_actions(self.now)
        self.made.check()

    def go_on(self) -> bool:
        """Let time go on to what was named; False if nothing was."""
        named = self.made.next_time(self.now)
        if named is not None:
            self.now = named
            self.begin()
        return named is not None

    def come_to_rest(self) -> None:
        for stream_id in self.logs:
            self.tell(stream_id)
        self.begin()
        for _ in range(5_000):
            if self.under_way:
                self.finish(0, works=True)
                self.begin()
            elif not self.go_on():
                return

    def finish(self, number: int, *, works: bool) -> None:
        action = self.under_way.pop(number)
        if not works:
            self.made.failed(action, self.now, refused=self.chance.random() < 0.5)
        elif isinstance(action, Open):
            self.made.opened(action, None, self.end(action.stream_id), self.now)
        elif isinstance(action, Read):
            log, end = self.logs[action.stream_id], action.end
            after = [one for one in log if end is None or one.place >= end]
            self.made.was_read(action, after[0] if after else None, self.now)
        else:
            self.made.answered(action, [self.take(part) for part in action.parts], self.now)

    def take(self, part: Part) -> Answer:
        stream_id = part.stream_id
        lacks = self.logs[stream_id][self.there[stream_id] :]
        if part.piece is not None and part.piece in lacks:
            if part.piece != lacks[0]:
                return Answer(Taken.GAP, self.end(stream_id) or NOWHERE)
            self.there[stream_id] += 1
        self.heard[stream_id] = part.told
        return Answer(Taken.OK, self.end(stream_id) or NOWHERE)

    def end(self, stream_id: StreamId) -> Place | None:
        there = self.there[stream_id]
        return self.logs[stream_id][there - 1].end if there else None
