"""Parameters of calls as they stand in a query."""

from typing import Any

import pytest

from bottomless.client.parameters import query_of
from bottomless.errors import InvalidRequest


def test_lists_stay_lists_and_bytes_of_keys_become_base64() -> None:
    assert query_of({"limit": 3, "offset": "first", "filter": ["b", "a"]}) == {
        "limit": 3,
        "offset": "first",
        "filter": ("b", "a"),
    }
    assert query_of({"key": ["a", b"\xff"]}) == {"key": ("a",), "key_base64": ("/w==",)}
    assert query_of({"key": b"k"}) == {"key_base64": ("aw==",)}
    assert query_of({"match_unfiltered": True, "follow": False}) == {
        "match_unfiltered": "true",
        "follow": "false",
    }


@pytest.mark.parametrize(
    "parameters", [{"filter": []}, {"filter": ()}, {"key": []}, {"filter": b"a"}]
)
def test_a_list_that_asks_for_nothing_is_no_list_that_asks_for_all(
    parameters: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequest, match=r"filter|key"):
        query_of(parameters)
