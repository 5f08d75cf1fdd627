"""Who may give which scopes away, and whose keys they may touch."""

import pytest

from bottomless.errors import Code, Denied, InvalidRequest
from bottomless_server.core.principal import LOCAL, Principal
from bottomless_server.manifest.keys.core.granting import (
    check_granting,
    check_scopes,
    covers,
    is_operator,
    tenant_for,
)


@pytest.mark.parametrize(
    ("granting", "asked"),
    [
        (["*"], ["*"]),
        (["*"], ["admin", "read:orders"]),
        (["read"], ["read"]),
        (["read"], ["read:*"]),
        (["read:*"], ["read"]),
        (["read"], ["read:orders"]),
        (["read:or*"], ["read:orders"]),
        (["read:or*"], ["read:or"]),
        (["read:or*"], ["read:orders-*"]),
        (["read:orders"], ["read:orders"]),
        (["append", "read"], ["read", "append:x"]),
        (["email", "read"], ["read"]),
    ],
)
def test_what_one_of_the_scopes_allows_can_be_granted(
    granting: list[str], asked: list[str]
) -> None:
    assert covers(granting, asked)


@pytest.mark.parametrize(
    ("granting", "asked"),
    [
        ([], ["read"]),
        (["admin"], ["*"]),
        (["admin"], ["read"]),
        (["read"], ["append"]),
        (["read:orders"], ["read"]),
        (["read:orders"], ["read:orders*"]),
        (["read:orders"], ["read:orders2"]),
        (["read:orders-*"], ["read:orders"]),
        (["read:orders-*"], ["read:or*"]),
        (["read"], ["read", "append"]),
        (["email"], ["email"]),
        (
            [
                "read",
                "append",
                "consume",
                "describe",
                "manage",
                "delete",
                "locations",
                "admin",
            ],
            ["*"],
        ),
    ],
)
def test_nothing_else_can_be_granted(granting: list[str], asked: list[str]) -> None:
    assert not covers(granting, asked)
    with pytest.raises(Denied) as caught:
        check_granting(Principal("acme", "key:1", tuple(granting)), asked)
    assert caught.value.code is Code.FORBIDDEN


@pytest.mark.parametrize("scope", ["", "reed", "*:orders", "read:", "read:-x", "read:a**", "READ"])
def test_what_is_no_scope_is_refused_with_its_place(scope: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_scopes(["read", scope])
    assert caught.value.code is Code.VALIDATION_FAILED
    assert [fault.pointer for fault in caught.value.faults] == ["/scopes/1"]


def test_a_scope_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        check_scopes(["read", "read"])


def test_the_operator_alone_says_whose_keys_are_meant() -> None:
    assert tenant_for(LOCAL, "acme") == "acme"
    assert tenant_for(LOCAL, None) == "default"
    anybody = Principal("acme", "key:1", ("*",))
    assert not is_operator(anybody)
    assert tenant_for(anybody, None) == tenant_for(anybody, "acme") == "acme"
    for principal in (anybody, Principal("default", "key:2", ("admin",))):
        with pytest.raises(Denied):
            tenant_for(principal, "globex")
