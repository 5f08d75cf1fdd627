"""Names of streams that services remember: bounded, no answer takes the place of a newer one, and
none is younger than what is known of it."""

from random import Random

import pytest

from bottomless.model.names import FullName, StreamName
from bottomless_server.runtime.base.known_names import KnownNames, Question

A, B, C, D = (FullName("default", StreamName(name)) for name in "abcd")
ERA_MS = 1_000


def made(count_max: int = 3) -> KnownNames[str]:
    names: KnownNames[str] = KnownNames(count_max, ERA_MS)
    assert names.hear("first", 0)
    return names


def kept(names: KnownNames[str], name: FullName, now: int) -> tuple[str, int] | None:
    """What is remembered of a name, and of which moment that is known to be true."""
    known = names.get(name, now)
    return None if known is None else (known.meaning, known.true_at)


def test_a_full_table_forgets_the_name_that_was_not_looked_up_for_longest() -> None:
    names = made()
    for name in (A, B, C):
        names.keep(name, name.name, names.ask(0))
    assert kept(names, A, 1) == ("a", 0)
    # What the table does by itself is no use of a name.
    names.hear("second", 2)
    assert names.of_other_eras(0) == [A, B, C]
    names.keep(B, "b", names.ask(2))
    names.keep(D, "d", names.ask(2))

    assert [name for name in (A, B, C, D) if name in names] == [A, C, D]
    assert len(names) == 3


def test_a_table_never_holds_more_than_it_may_and_loses_one_name_at_a_time() -> None:
    names = made(10)
    many = [FullName("default", StreamName(f"s-{number}")) for number in range(1_000)]
    for number, name in enumerate(many):
        names.keep(name, "", names.ask(number))
        assert len(names) == min(number + 1, 10)
    assert all(name in names for name in many[-10:])


def test_an_answer_to_an_earlier_question_changes_nothing() -> None:
    names = made()
    earlier, later = names.ask(10), names.ask(20)
    names.keep(A, "newer", later)
    names.keep(A, "older", earlier)
    names.forget(A, earlier)
    assert kept(names, A, 20) == ("newer", 20)
    names.keep(A, "as old", names.ask(20))
    assert kept(names, A, 20) == ("as old", 20)


def test_a_name_is_forgotten_by_what_is_as_new_and_without_a_question() -> None:
    names = made()
    names.keep(A, "a", names.ask(20))
    names.keep(B, "b", names.ask(20))
    names.forget(A, names.ask(20))
    names.forget(B)
    names.forget(C)
    assert len(names) == 0
    assert names.get(A, 20) is None


def test_a_mark_that_stands_keeps_all_names_young() -> None:
    names = made()
    names.keep(A, "a", names.ask(10))
    names.keep(B, "b", names.ask(20))
    assert not names.hear("first", 500)

    assert (kept(names, A, 600), kept(names, B, 600)) == (("a", 500), ("b", 500))


def test_the_end_of_an_era_makes_nothing_older_and_keeps_nothing_young() -> None:
    names = made()
    names.keep(A, "a", names.ask(10))
    names.hear("first", 300)
    assert names.hear("second", 400)
    names.hear("second", 500)

    assert kept(names, A, 600) == ("a", 300)
    assert names.of_other_eras(0) == [A]
    names.keep(A, "a", names.ask(600))
    names.hear("second", 700)
    assert kept(names, A, 800) == ("a", 700)
    assert names.of_other_eras(0) == []


def test_an_answer_belongs_to_the_era_in_which_its_question_was_sent() -> None:
    """It may have been given before a name was freed, and arrive after the mark of that was heard."""
    names = made()
    question = names.ask(10)
    names.hear("second", 20)
    names.keep(A, "a", question)
    names.hear("second", 900)

    assert kept(names, A, 900) == ("a", 10)


def test_a_mark_that_comes_back_does_not_bring_its_era_back() -> None:
    """A coordination store that lost its last changes shows what it showed before them."""
    names = made()
    names.keep(A, "a", names.ask(10))
    names.hear("second", 20)
    assert names.hear("first", 30)
    names.hear("first", 900)

    assert kept(names, A, 900) == ("a", 10)


def test_where_the_mark_cannot_be_told_nothing_stays_young() -> None:
    names = made()
    for time in (100, 200):
        assert names.hear(None, time)
        names.keep(A, "a", names.ask(time))
    assert names.hear(None, 900)
    assert kept(names, A, 900) == ("a", 200)


def test_an_era_ends_after_its_time_though_the_mark_stands() -> None:
    names = made()
    names.keep(A, "a", names.ask(10))
    assert not names.hear("first", ERA_MS - 1)
    assert names.hear("first", ERA_MS)
    names.hear("first", ERA_MS + 900)

    assert kept(names, A, 2 * ERA_MS) == ("a", ERA_MS - 1)


def test_what_was_asked_before_is_passed_over() -> None:
    names = made()
    names.hear("second", 100)
    names.keep(A, "a", names.ask(110))
    assert not names.hear("first", 50)
    names.hear("second", 200)
    assert kept(names, A, 200) == ("a", 200)


def test_names_that_nobody_used_lately_are_left_out() -> None:
    names = made()
    names.keep(A, "a", names.ask(10))
    names.keep(B, "b", names.ask(10))
    names.get(B, 400)
    names.hear("second", 500)
    assert names.of_other_eras(400) == [B]


def _history(seed: int, kind: type[KnownNames[str]]) -> None:
    """Names that are freed at any moment, answers and marks that are under way for any time.

    Raises:
        AssertionError: a name is taken for true at a moment at which it was not.
    """
    chance, names = Random(seed), kind(2, ERA_MS)
    true: dict[FullName, list[tuple[int, str]]] = {A: [(0, "a 0")], B: [(0, "b 0")]}
    newest = {A: 0, B: 0}
    mark, freed = 0, {A: 0, B: 0}
    answers: list[tuple[int, FullName, str, Question]] = []
    marks: list[tuple[int, int, int]] = []

    def meant(name: FullName, meaning: str, moment: int) -> bool:
        before = [told for since, told in true[name] if since < moment][-1:]
        return meaning in [*before, *(told for since, told in true[name] if since == moment)]

    now = 0
    for _ in range(300):
        # Many things happen within one ms.
        now += chance.choice((0, 1, 2))
        name = chance.choice((A, B))
        for one in chance.sample(answers, len(answers)):
            if one[0] <= now:
                answers.remove(one)
                names.keep(*one[1:])
                known = names.get(one[1], now)
                assert known is not None
                life = int(known.meaning.split()[1])
                assert life >= newest[one[1]], "an answer took the place of a newer one"
                newest[one[1]] = life
        for heard in [heard for heard in marks if heard[0] <= now]:
            marks.remove(heard)
            names.hear(*heard[1:])
        event = chance.random()
        if event < 0.1:
            mark, freed[name] = chance.randrange(1 << 62), freed[name] + 1
            true[name].append((now, f"{name.name} {freed[name]}"))
        elif event < 0.4:
            # Read at once, and answered late.
            question = names.ask(now)
            answers.append(
                (now + chance.choice((0, 1, 2, 9, 39)), name, true[name][-1][1], question)
            )
        elif event < 0.7 and not marks:
            marks.append((now + chance.choice((0, 1, 2, 9, 39)), mark, now))
        known = names.get(name, now)
        assert known is None or meant(name, known.meaning, known.true_at)
        assert known is None or known.true_at <= now


def _play(kind: type[KnownNames[str]]) -> None:
    for seed in range(200):
        _history(seed, kind)


def test_no_name_is_ever_taken_for_true_when_it_was_not() -> None:
    _play(KnownNames)


class _OfTheAnswer(KnownNames[str]):
    """Answers belong to the era in which they arrive."""

    def keep(self, name: FullName, meaning: str, question: Question) -> None:
        super().keep(name, meaning, question._replace(era=self._era))


class _OneEra(KnownNames[str]):
    """Nobody looks at the mark."""

    def hear(self, mark: object, asked_at: int) -> bool:
        return super().hear(mark and "one", asked_at)


@pytest.mark.parametrize("without", [_OfTheAnswer, _OneEra])
def test_without_a_guard_a_name_that_was_freed_is_taken_for_true(
    without: type[KnownNames[str]],
) -> None:
    with pytest.raises(AssertionError):
        _play(without)
