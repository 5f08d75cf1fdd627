"""What goes on and on is told when it begins, seldom while it lasts, and when it has ended."""

from bottomless_server.node.core.troubles import AGAIN_SECONDS, KIND_COUNT_MAX, Lasting, Troubles


def test_a_trouble_is_told_at_its_beginning_seldom_and_at_its_end() -> None:
    troubles = Troubles()
    told = [(at, said) for at in range(0, 1_300, 2) if (said := troubles.meet("away", at))]
    assert told == [(0, Lasting(0, 1)), (600, Lasting(600, 301)), (1_200, Lasting(1_200, 601))]
    assert troubles.end("away", 1_301) == Lasting(1_301, 650)
    assert troubles.end("away", 1_302) is None
    assert troubles.meet("away", 1_303) == Lasting(0, 1)


def test_each_kind_is_told_and_one_that_comes_after_a_long_rest_begins_anew() -> None:
    troubles = Troubles()
    assert troubles.meet("away", 0) == troubles.meet("refused", 1) == Lasting(0, 1)
    assert troubles.meet("away", 2) is None
    assert troubles.meet("away", 2 + AGAIN_SECONDS) == Lasting(0, 1)


def test_no_more_kinds_are_remembered_than_there_is_room_for() -> None:
    troubles = Troubles()
    for kind in range(KIND_COUNT_MAX + 1):
        assert troubles.meet(str(kind), 0.0) == Lasting(0, 1)
    assert troubles.meet("1", 0.0) is None
    assert troubles.meet("0", 0.0) == Lasting(0, 1)
