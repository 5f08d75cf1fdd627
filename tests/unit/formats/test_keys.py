import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.formats.keys import (
    GENERATION_KEY,
    FragmentKey,
    FragmentOfStream,
    StagedPlanKey,
    consumers_key,
    fragment_key,
    fragment_of_key,
    group_key,
    parse_consumers_key,
    parse_fragment_key,
    parse_registry_key,
    parse_staged_key,
    parse_staged_plan_key,
    registry_key,
    root_key,
    staged_key,
    staged_plan_key,
    staged_plans_prefix,
    stream_prefix,
    wal_key,
)
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.tiers import COPY_MAX
from unit.formats.examples import STREAM_ID, UID


def test_keys_are_those_of_the_spec() -> None:
    home = f"default/{STREAM_ID}/"
    assert stream_prefix(STREAM_ID, "default") == home
    assert fragment_key(STREAM_ID, 1040, UID, "default") == (
        f"{home}data/00000000000000001040.{UID}.fragment"
    )
    assert root_key(STREAM_ID, 1, 3, 17, UID, "default") == (
        f"{home}metadata/root.0000000001.00000000000000000003.00000000000000000017.{UID}.manifest"
    )
    assert group_key(STREAM_ID, 1040, UID, 2, "default") == (
        f"{home}metadata/00000000000000001040.{UID}.g2"
    )
    assert registry_key(STREAM_ID, 7, "default") == f"{home}stream.0000000007.json"
    assert consumers_key(STREAM_ID, 12, UID, "default") == (
        f"{home}metadata/consumers.00000000000000000012.{UID}.json"
    )
    assert staged_key(STREAM_ID, UID, "default") == f"{home}staged/{UID}.staged"
    assert GENERATION_KEY == "_system/generation.json"


def test_a_tenant_has_its_own_keys() -> None:
    assert fragment_key(STREAM_ID, 0, UID, "acme").startswith(f"acme/{STREAM_ID}/data/")


@given(st.integers(0, OFFSET_MAX))
def test_a_fragments_key_is_read_back(offset: int) -> None:
    assert parse_fragment_key(fragment_key(STREAM_ID, offset, UID, "default")) == FragmentKey(
        offset, UID
    )


@given(st.integers(0, OFFSET_MAX), st.just(0) | st.integers(1, COPY_MAX))
def test_the_stream_of_a_fragment_is_read_from_its_key_moved_or_not(offset: int, copy: int) -> None:
    key = fragment_key(STREAM_ID, offset, UID, "acme", copy)

    assert fragment_of_key(key) == FragmentOfStream(STREAM_ID, offset)


@pytest.mark.parametrize(
    "object_key",
    [
        group_key(STREAM_ID, 1, UID, 1, "default"),
        wal_key(UID, 1),
        f"{STREAM_ID}/data/{1:020d}.{UID}.fragment",
        f"default/{STREAM_ID}/data/{OFFSET_MAX + 1:020d}.{UID}.fragment",
        f"default/{STREAM_ID}/data/{1:020d}.{UID}.9.fragment",
    ],
)
def test_no_other_key_is_that_of_a_fragment_of_a_stream(object_key: str) -> None:
    assert fragment_of_key(object_key) is None


@given(st.lists(st.integers(0, OFFSET_MAX), max_size=5))
def test_keys_sort_as_their_offsets(offsets: list[int]) -> None:
    keys = [fragment_key(STREAM_ID, offset, UID, "default") for offset in sorted(offsets)]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "object_key",
    [
        "",
        "stream.json",
        f"00000000000000001040.{UID}.g1",
        f"1040.{UID}.fragment",
        f"00000000000000001040.{UID.upper()}.fragment",
        f"00000000000000001040.{UID[1:]}.fragment",
        f"00000000000000001040.{UID}.fragment\n",
        "\u0660" * 20 + f".{UID}.fragment",
        f"{'9' * 20}.{UID}.fragment",
    ],
)
def test_other_keys_are_not_fragments(object_key: str) -> None:
    assert parse_fragment_key(f"default/{STREAM_ID}/data/{object_key}") is None


@given(st.text())
def test_no_text_is_too_strange_for_the_parser(text: str) -> None:
    parse_fragment_key(text)


def test_versions_of_registry_and_consumers_are_read_back_and_of_nothing_else() -> None:
    assert parse_registry_key(registry_key(STREAM_ID, 7, "default")) == 7
    assert parse_consumers_key(consumers_key(STREAM_ID, 12, UID, "default")) == 12
    for object_key in ("stream.json", "stream.7.json", f"x/{UID}.fragment", ""):
        assert parse_registry_key(object_key) is None
        assert parse_consumers_key(object_key) is None


def test_a_staged_batchs_key_is_read_back() -> None:
    key = staged_key(STREAM_ID, UID, "acme")
    assert parse_staged_key(key) == UID
    for other in (f"{key}.new", key.replace("staged/", "data/"), f"{UID}.staged", key[:-1]):
        assert parse_staged_key(other) is None


def test_the_key_of_a_plan_is_read_back_and_the_later_one_sorts_last() -> None:
    early, late = StagedPlanKey(2, 11, "a" * 32), StagedPlanKey(10, 0, "a" * 32)
    keys = [staged_plan_key(STREAM_ID, one, "acme") for one in (early, late)]
    assert keys[0] == (
        f"{staged_plans_prefix(STREAM_ID, 'acme')}{2:020d}.{11:010d}.{'a' * 32}.plan"
    )
    assert [parse_staged_plan_key(key) for key in keys] == [early, late]
    assert sorted(keys) == keys
    for other in (f"{keys[0]}.new", keys[0].replace("plans/", ""), keys[0][:-1]):
        assert parse_staged_plan_key(other) is None
        assert parse_staged_key(other) is None
