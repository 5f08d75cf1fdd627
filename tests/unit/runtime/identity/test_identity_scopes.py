"""Scopes mean what docs/identity.md says, to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import InvalidRequest
from bottomless_server.core.scopes import Operation, grants_of, parse_scope

NAMES = st.text("ab-.", max_size=6).map(lambda text: f"a{text}")


@pytest.mark.parametrize("name", ["orders-", "orders-x", "orders-2-y"])
def test_a_prefix_means_every_name_that_starts_so(name: str) -> None:
    assert grants_of(("read:orders-*",)).allow("read", name)


@pytest.mark.parametrize("name", ["orders", "orders2", "Orders-x", "my-orders-x"])
def test_a_prefix_means_no_other_name(name: str) -> None:
    assert not grants_of(("read:orders-*",)).allow("read", name)


@given(name=NAMES, prefix=NAMES)
def test_a_star_stands_for_any_characters_and_nothing_else_does(name: str, prefix: str) -> None:
    assert grants_of((f"read:{prefix}*",)).allow("read", name) is name.startswith(prefix)
    assert grants_of((f"read:{prefix}",)).allow("read", name) is (name == prefix)


def test_an_operation_does_not_include_another() -> None:
    for operation in Operation:
        grants = grants_of((operation.value,))
        assert [each for each in Operation if grants.allow(each, "orders")] == [operation]
        assert grants.allow_everywhere(operation)


def test_a_pattern_does_not_allow_what_reaches_everywhere() -> None:
    grants = grants_of(("admin:orders-*", "admin:bills"))
    assert grants.allow_somewhere("admin")
    assert not grants.allow_everywhere("admin")
    assert grants_of(("*",)).allow_everywhere("admin")


def test_scopes_add_up_and_show_what_they_touch() -> None:
    grants = grants_of(("read:orders", "append:bills*"))
    assert grants.show("orders")
    assert grants.show("bills-7")
    assert not grants.show("others")
    assert not grants.allow("append", "orders")


def test_what_is_no_scope_of_ours_allows_nothing() -> None:
    grants = grants_of(("openid", "profile", "write:orders", "read:*x", "*:orders", ""))
    assert not grants.show("orders")


@pytest.mark.parametrize(
    "text",
    ["", "write", "read:", "read:a*b", "read:*a", "read:a:b", "READ", "*:a", "read:" + "a" * 130],
)
def test_a_scope_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a scope is"):
        parse_scope(text)


def test_a_scope_without_a_pattern_is_one_with_a_star() -> None:
    assert parse_scope("read") == parse_scope("read:*") == ("read", "*")
    assert parse_scope("*") == ("*", "*")
