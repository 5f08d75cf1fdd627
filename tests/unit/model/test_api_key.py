"""API keys as values: states, secrets within their overlap, ids."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.api_key import (
    SECRET_COUNT_MAX,
    ApiKey,
    KeyId,
    KeySecret,
    KeyState,
    credential,
    hash_secret,
    key_id_from,
    overlap_ends_at,
    parse_key_id,
    revoked,
    rotated,
)

KEY = ApiKey(
    key_id=KeyId("0" * 24),
    tenant="acme",
    label="",
    scopes=("read",),
    created_at=0,
    created_by="root",
    secrets=(KeySecret("first", None),),
)


def good(key: ApiKey, now: int) -> list[str]:
    return [one.sha256 for one in key.good_secrets(now)]


def test_a_key_without_an_end_is_active_until_it_is_revoked() -> None:
    assert KEY.state(2**40) is KeyState.ACTIVE
    assert KEY.ends_at is None
    dead = revoked(KEY, 5)
    assert dead.state(5) is KeyState.REVOKED
    assert (dead.ends_at, dead.secrets) == (5, ())


def test_a_key_with_an_end_is_good_for_nothing_from_that_moment_on() -> None:
    key = replace(KEY, expires_at=10)
    assert (key.state(9), key.state(10)) == (KeyState.ACTIVE, KeyState.EXPIRED)
    assert (good(key, 9), good(key, 10)) == (["first"], [])


def test_a_revocation_is_not_moved_by_another_one() -> None:
    assert revoked(revoked(KEY, 5), 9).revoked_at == 5


def test_an_expired_key_that_is_revoked_ended_when_it_was() -> None:
    assert revoked(replace(KEY, expires_at=10), 20).ends_at == 20


def test_the_secret_before_is_good_for_the_overlap() -> None:
    key = rotated(KEY, "second", 100, now=50)
    assert good(key, 149) == ["second", "first"]
    assert good(key, 150) == ["second"]
    assert overlap_ends_at(key.secrets, 149) == 150
    assert overlap_ends_at(key.secrets, 150) is None
    assert key.rotated_at == 50


def test_without_an_overlap_only_the_new_secret_is_good() -> None:
    assert good(rotated(KEY, "second", 0, now=50), 50) == ["second"]


def test_a_second_rotation_does_not_cut_off_who_did_not_hear_of_the_first() -> None:
    key = rotated(rotated(KEY, "lost", 100, now=0), "second", 100, now=50)
    assert good(key, 99) == ["second", "lost", "first"]
    assert good(key, 100) == ["second", "lost"]


def test_a_shorter_overlap_ends_those_before_it_too() -> None:
    key = rotated(rotated(KEY, "second", 100, now=0), "third", 0, now=50)
    assert good(key, 50) == ["third"]


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 500)), max_size=12))
def test_the_newest_secret_is_always_good_and_few_others_are(turns: list[tuple[int, int]]) -> None:
    key, now = KEY, 0
    for number, (later, overlap) in enumerate(turns):
        now += later
        before = set(good(key, now))
        key = rotated(key, str(number), overlap, now)
        assert good(key, now)[0] == str(number)
        assert set(good(key, now)) <= {*before, str(number)}
        assert len(key.secrets) <= SECRET_COUNT_MAX
        assert [one.until is None for one in key.secrets].count(True) == 1


def test_ids_sort_by_the_time_of_creation() -> None:
    ids = [key_id_from(time, bytes([255 - time]) * 6) for time in range(5)]
    assert ids == sorted(ids)
    assert all(parse_key_id(one) == one for one in ids)


def test_only_ids_of_the_form_are_ids() -> None:
    for text in ("", "root", "0" * 23, "0" * 25, "A" * 24, "0" * 23 + "\n", "\u0660" * 24):
        assert parse_key_id(text) is None


def test_what_is_kept_of_a_secret_is_its_hash() -> None:
    assert credential("0" * 24, "ab") == "sk_" + "0" * 24 + "_ab"
    # RFC 6234 has this value.
    assert hash_secret("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
