"""Ids of messages: UUIDv7 that count up within a request."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.queues.core.message_ids import RANDOM_SIZE, first_id
from bottomless_server.queues.core.repeats import ids_of


@given(st.integers(0, 2**48 - 1), st.binary(min_size=RANDOM_SIZE, max_size=RANDOM_SIZE))
def test_all_ids_of_a_request_are_uuids_of_its_time(timestamp: int, randomness: bytes) -> None:
    ids = ids_of(first_id(timestamp, randomness), 1_000)
    for raw in (ids[0], ids[-1]):
        found = uuid.UUID(bytes=raw)
        assert (found.version, found.variant) == (7, uuid.RFC_4122)
        assert int.from_bytes(raw[:6], "big") == timestamp
    assert ids == sorted(set(ids))
