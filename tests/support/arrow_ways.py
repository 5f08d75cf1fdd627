"""An Arrow body by both ways: of its own buffers, and through Arrow's reader, casts and writer."""

from bottomless.errors import InvalidRequest
from bottomless.model.limits import MIB
from bottomless_server.ingest.records.arrow_in_place import read_in_place
from bottomless_server.ingest.records.arrow_records import read_arrow


def is_taken_in_place(
    body: bytes, *, numbered: bool = False, frame_size_max: int = 8 * MIB
) -> bool:
    """Whether the body is taken in place; if so, both ways have the same verdict and bytes.

    Raises:
        InvalidRequest: the body is refused, by the long way.
    """
    short = read_in_place(body, frame_size_max, numbered=numbered)
    try:
        long = read_arrow(body, frame_size_max, numbered=numbered)
    except InvalidRequest:
        assert short is None, "what is refused was taken in place"
        raise
    if short is None:
        return False
    (frames, ids), (expected, expected_ids) = short, long
    assert [frame.record_count for frame in frames] == [one.record_count for one in expected]
    assert [bytes(frame.data) for frame in frames] == [bytes(one.data) for one in expected]
    assert (ids is None) == (expected_ids is None) == (not numbered)
    if ids is not None and expected_ids is not None:
        assert ids.tolist() == expected_ids.tolist()
    return True
