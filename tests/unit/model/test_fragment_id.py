import pytest

from bottomless.errors import Code, NotFound
from bottomless.model.fragment import parse_fragment_id
from bottomless.model.limits import OFFSET_MAX
from unit.formats.examples import UID, a_fragment


def test_an_id_is_read_back() -> None:
    info = a_fragment().info
    assert parse_fragment_id(info.fragment_id) == (info.first_offset, info.uid)
    assert parse_fragment_id(f"{OFFSET_MAX:020d}-{UID}") == (OFFSET_MAX, UID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        f"1040-{UID}",
        f"{1040:020d}.{UID}",
        f"{1040:020d}-{UID[1:]}",
        f"{1040:020d}-{UID}\n",
        f"{1040:020d}-{UID.upper()}",
        f"{OFFSET_MAX + 1:020d}-{UID}",
        f"{'9' * 20}-{UID}",
    ],
)
def test_no_fragment_has_another_id(text: str) -> None:
    with pytest.raises(NotFound) as caught:
        parse_fragment_id(text)
    assert caught.value.code is Code.FRAGMENT_NOT_FOUND
