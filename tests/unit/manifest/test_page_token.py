"""Page tokens: they go on with the list that they were made for, and nobody else makes them."""

from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import ManifestHarness

from bottomless.errors import InvalidRequest
from bottomless_server.core.sealed_token import seal, unseal
from bottomless_server.runtime.http.paging import Paging

SECRET = b"s" * 32
SCOPE = ("streams", "default", "active", "a")


@given(st.text(), st.lists(st.text()))
def test_a_token_comes_back(after: str, scope: list[str]) -> None:
    after = after.encode("utf-8", "replace").decode()
    scope = [word.encode("utf-8", "replace").decode() for word in scope]
    assert unseal(seal(scope, [after], SECRET), scope, SECRET) == [after]


@pytest.mark.parametrize(
    ("scope", "secret"),
    [
        (("streams", "other", "active", "a"), SECRET),
        (("streams", "default", "active", ""), SECRET),
        (("streams", "default", "activea", ""), SECRET),
        ((), SECRET),
        (SCOPE, b"t" * 32),
    ],
)
def test_a_token_of_another_list_or_another_secret_is_refused(
    scope: tuple[str, ...], secret: bytes
) -> None:
    token = seal(SCOPE, ["abc"], SECRET)
    with pytest.raises(InvalidRequest):
        unseal(token, scope, secret)


def test_a_token_does_not_show_the_name_that_it_holds() -> None:
    token = seal(SCOPE, ["hidden-stream"], SECRET)
    assert b"hidden" not in urlsafe_b64decode(token + "=" * (-len(token) % 4))


@given(st.text(max_size=80))
def test_no_text_is_too_strange_to_be_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        unseal(text, SCOPE, SECRET)


async def test_all_processes_of_an_installation_understand_each_others_tokens() -> None:
    coordination = ManifestHarness().coordination
    token = await Paging(coordination).token_for("abc", SCOPE)
    assert await Paging(coordination).start_of(token, SCOPE) == "abc"
    assert await Paging(coordination).start_of(None, SCOPE) == ""
    with pytest.raises(InvalidRequest):
        await Paging(ManifestHarness().coordination).start_of(token, SCOPE)


def test_a_token_of_the_release_before_goes_on_with_its_list() -> None:
    assert unseal("qM2jNV2dUP4vZPP1LT6HxIKa-tV9WFQ", SCOPE, SECRET) == ["abc"]
