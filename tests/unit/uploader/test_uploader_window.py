"""What may be under way: fragments of one stream, bytes of all."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.names import Uid
from bottomless_server.uploader.core.window import Budget, Expected, Window

A, B, C = Uid("a" * 32), Uid("b" * 32), Uid("c" * 32)


def test_a_full_window_has_no_room_until_an_upload_is_done() -> None:
    window = Window(upload_count_max=2)
    window.started(A)
    window.started(B)
    assert not window.has_room

    window.uploaded(B)
    assert window.has_room
    assert window.uploading == {A}


def test_fragments_that_the_manifest_has_not_applied_are_bounded_too() -> None:
    window = Window(upload_count_max=2, unapplied_count_max=2)
    for uid in (A, B):
        window.started(uid)
        window.uploaded(uid)
    assert not window.has_room

    window.applied(A)
    assert window.has_room


def test_a_window_is_empty_when_everything_is_applied() -> None:
    window = Window(upload_count_max=1)
    window.started(C)
    window.uploaded(C)
    assert not window.empty
    window.applied(C)
    assert window.empty


def test_who_asks_first_is_served_first() -> None:
    budget = Budget(100)
    assert budget.ask(1, 60) == [1]
    assert budget.ask(2, 60) == []
    assert budget.ask(3, 10) == []

    assert budget.free(1) == [2, 3]


def test_more_than_the_whole_budget_goes_alone() -> None:
    budget = Budget(100)
    assert budget.ask(1, 10) == [1]
    assert budget.ask(2, 500) == []
    assert budget.free(1) == [2]
    assert budget.ask(3, 1) == []
    assert budget.free(2) == [3]


def test_what_a_fetch_really_took_counts() -> None:
    budget = Budget(100)
    budget.ask(1, 60)
    budget.charge(1, 90)
    assert budget.ask(2, 20) == []
    assert budget.charge(1, 30) == [2]
    assert budget.size == 50


def test_who_holds_bytes_gets_more_only_where_they_are_free_or_it_is_alone() -> None:
    budget = Budget(100)
    budget.ask(1, 40)
    budget.ask(2, 50)
    assert not budget.grow(1, 51)
    assert budget.grow(1, 50)
    assert budget.grow(1, 20), "it holds more than that already"
    assert budget.size == 100

    budget.free(2)
    assert budget.grow(1, 500), "a fragment larger than the whole budget goes through, alone"
    assert budget.ask(3, 1) == []
    assert budget.free(1) == [3]
    budget.check()


def test_a_fragment_asks_for_what_the_last_one_took() -> None:
    expected = Expected(20)
    assert (expected.size(10), expected.size(1_000)) == (10, 20)

    expected.took(100, 1_000)
    assert expected.size(1_000) == 20 + 125
    expected.took(900, 1_000)
    assert expected.size(1_000) == 20 + 1_000, "no more than its bytes"


def test_what_took_more_than_it_asked_for_asks_for_as_much_the_next_time() -> None:
    """Else it might be dropped and gathered again for ever."""
    expected = Expected(20)
    expected.took_more(400, 500)
    assert expected.size(1_000) == 20 + 1_000
    assert expected.size(100) == 400
    expected.took(0, 500)
    assert expected.size(100) == 20


def test_a_claim_that_waits_can_be_withdrawn() -> None:
    budget = Budget(100)
    budget.ask(1, 100)
    budget.ask(2, 90)
    budget.ask(3, 10)
    assert budget.free(2) == []
    assert budget.free(1) == [3]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "charge", "grow", "free"]),
            st.integers(0, 9),
            st.integers(1, 150),
        ),
        max_size=60,
    )
)
def test_without_charges_beyond_claims_the_budget_holds(steps: list[tuple[str, int, int]]) -> None:
    budget, claims, held = Budget(100), dict[int, int](), set[int]()
    for step, ticket, size in steps:
        if step == "ask" and ticket not in claims:
            claims[ticket] = size
            held.update(budget.ask(ticket, size))
        elif step == "charge" and ticket in held:
            # What was given back may be another's by now, so the next charge has less to go to.
            claims[ticket] = min(size, claims[ticket])
            held.update(budget.charge(ticket, claims[ticket]))
        elif step == "grow" and ticket in held:
            if budget.grow(ticket, size):
                claims[ticket] = max(size, claims[ticket])
        elif step == "free":
            claims.pop(ticket, None)
            held.discard(ticket)
            held.update(budget.free(ticket))
        budget.check()
        assert budget.size <= 100 or len(held) == 1
        assert held == claims.keys() or budget.waiting_count == len(claims) - len(held) > 0
        assert held or not claims
