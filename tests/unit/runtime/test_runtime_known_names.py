"""Names of streams that services remember: bounded, and no answer takes the place of a newer one."""

from bottomless.model.names import FullName, StreamName
from bottomless_server.runtime.base.known_names import Known, KnownNames

A, B, C, D = (FullName("default", StreamName(name)) for name in "abcd")


def test_a_full_table_forgets_the_name_that_was_not_looked_up_for_longest() -> None:
    names: KnownNames[int] = KnownNames(3)
    for number, name in enumerate((A, B, C)):
        names.keep(name, number, 0)
    assert names.get(A) == Known(0, 0)
    names.keep(D, 3, 0)

    assert [name for name in (A, B, C, D) if name in names] == [A, C, D]
    assert len(names) == 3


def test_a_table_never_holds_more_than_it_may_and_loses_one_name_at_a_time() -> None:
    names: KnownNames[int] = KnownNames(10)
    many = [FullName("default", StreamName(f"s-{number}")) for number in range(1_000)]
    for number, name in enumerate(many):
        names.keep(name, number, number)
        assert len(names) == min(number + 1, 10)
    assert all(name in names for name in many[-10:])


def test_an_answer_to_an_earlier_question_changes_nothing() -> None:
    names: KnownNames[str] = KnownNames(3)
    names.keep(A, "newer", 20)
    names.keep(A, "older", 10)
    names.forget(A, 10)
    assert names.get(A) == Known("newer", 20)
    names.keep(A, "as old", 20)
    assert names.get(A) == Known("as old", 20)


def test_a_name_is_forgotten_by_what_is_as_new_and_without_a_time() -> None:
    names: KnownNames[str] = KnownNames(3)
    names.keep(A, "a", 20)
    names.keep(B, "b", 20)
    names.forget(A, 20)
    names.forget(B)
    names.forget(C)
    assert len(names) == 0
    assert names.get(A) is None
