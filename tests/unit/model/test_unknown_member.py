import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.unknown_member import unknown_member

KNOWN = ("value", "json", "value_base64")
LISTED = "known here: value, json, value_base64"


@pytest.mark.parametrize(
    ("given_names", "said"),
    [
        (["valu"], f"there is no member valu; value is known; {LISTED}"),
        (["vaule_base64"], f"there is no member vaule_base64; value_base64 is known; {LISTED}"),
        (["payload"], f"there is no member payload; {LISTED}"),
        (["\x00", "payload"], f"there is no member payload; {LISTED}"),
    ],
)
def test_a_plain_name_is_said_back_with_the_known_ones(given_names: list[str], said: str) -> None:
    assert unknown_member(given_names, KNOWN) == said


@pytest.mark.parametrize(
    "name", ["s3cr3t", "sk_live_9f", "a" * 33, "<b>", "va lue", "", "välue", "-other", 7, None]
)
def test_what_might_be_a_secret_or_a_trick_is_not_repeated(name: object) -> None:
    assert unknown_member([name], KNOWN) == f"there is a member that is not known; {LISTED}"


@given(st.lists(st.text()))
def test_whatever_the_names_are_the_sentence_is_short_and_plain(names: list[str]) -> None:
    said = unknown_member(names, KNOWN)
    assert said.isascii()
    assert len(said) < 200
    assert unknown_member(names, ()).endswith("none is known here")
