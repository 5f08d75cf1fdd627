"""What a rebuild believes of what it finds, without any bucket."""

from support.manifest import a_fragment, a_record

from bottomless.formats.keys import RootKey
from bottomless.model.names import NodeId, Uid
from bottomless.model.stream import NOBODY, check_record
from bottomless_server.manifest.tree.core.rebuild_decision import (
    TreeEnd,
    equals,
    rank_roots,
    record_before,
    record_without_root,
)


def a_root(generation: int, epoch: int, version: int, uid: str = "a") -> RootKey:
    return RootKey(generation, epoch, version, Uid(uid * 32))


def test_only_roots_of_the_newest_generation_are_candidates() -> None:
    old, low, high = a_root(1, 9, 9), a_root(2, 4, 5), a_root(2, 3, 8)

    ranked = rank_roots([low, old, high], 2)

    assert ranked.candidates == (high, low)
    assert ranked.others == (old,)


def test_roots_of_a_rebuild_that_did_not_end_are_none() -> None:
    begun, good = a_root(3, 0, 0), a_root(2, 4, 5)

    ranked = rank_roots([begun, good], 2)

    assert ranked.candidates == (good,)
    assert ranked.others == (begun,)


def test_roots_of_one_version_compete_by_length_and_others_do_not() -> None:
    one, two, older = a_root(0, 1, 7, "a"), a_root(0, 1, 7, "b"), a_root(0, 1, 6)

    ranked = rank_roots([older, one, two], 0)

    assert [set(rank) for rank in equals(ranked.candidates)] == [{one, two}, {older}]


def test_the_version_goes_before_the_epoch_for_a_takeover_may_not_have_happened() -> None:
    """Earlier releases put a root of the next epoch first, and asked for that epoch afterwards."""
    stray, same, later = a_root(0, 2, 6, "b"), a_root(0, 1, 6), a_root(0, 1, 7)

    ranked = rank_roots([stray, same, later], 0)

    assert ranked.candidates == (later, stray, same)
    assert [set(rank) for rank in equals(ranked.candidates)] == [{later}, {stray, same}]


def test_of_several_fragments_the_newest_epoch_goes_on_and_of_that_the_longest() -> None:
    end = TreeEnd(10, 1, 0)
    long_and_old = a_fragment(10, 90, uid=Uid("1" * 32), epoch=1)
    short, longer = (a_fragment(10, to, uid=Uid(f"{to:032x}"), epoch=2) for to in (20, 30))

    assert end.extended_by([long_and_old, short, longer]) == longer
    assert end.after(longer) == TreeEnd(30, 2, 30)


def test_nothing_goes_on_over_a_hole_or_an_overlap() -> None:
    end = TreeEnd(10, 1, 0)

    assert end.extended_by([a_fragment(11, 20)]) is None
    assert end.extended_by([a_fragment(9, 20)]) is None
    assert end.extended_by([]) is None


def test_a_stream_whose_manifest_is_lost_belongs_to_nobody_who_would_begin_anew() -> None:
    homeless = record_before(a_record(home=None), None, 1)
    assert homeless.dirty is False

    record = record_without_root(homeless, None)

    check_record(record)
    assert (record.home, record.dirty) == (NOBODY, True)
    home = NodeId("1" * 32)
    assert record_without_root(record_before(a_record(home=home), None, 1), None).home == home
