"""What manifest says of super streams comes back as it was, and nonsense is its fault."""

from dataclasses import replace
from typing import Any

import pytest

from bottomless.errors import Code, InvalidRequest, Unavailable
from bottomless.model.names import FullName, StreamName, SuperId
from bottomless.model.super_stream import SuperState
from bottomless_server.protocol.supers import (
    SuperSaid,
    decode_super_stream,
    encode_super_stream,
    super_by_id,
    super_by_name,
    super_id_in,
    super_name_in,
)
from unit.formats.examples import SUPER_ID, SUPER_RECORD
from unit.protocol.wire import received, sent

ACME = FullName("acme", StreamName("events"))


def test_a_super_stream_comes_back_as_it_was_described() -> None:
    record = replace(SUPER_RECORD, state=SuperState.GROWING)
    said = decode_super_stream(received(sent(encode_super_stream(record))))
    assert said == SuperSaid(
        record.super_id,
        record.full_name,
        SuperState.GROWING,
        record.strategy,
        record.seed,
        record.layouts,
        record.partitions,
    )
    assert said.initial_count == record.initial_count
    assert said.layout == record.layouts[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"layouts": []},
        {"partitions": []},
        {"partitions": encode_super_stream(SUPER_RECORD)["partitions"][::-1]},
        {"state": "later"},
        {"strategy": "later"},
        {"seed": "1"},
    ],
)
def test_an_answer_that_contradicts_itself_is_manifests_fault(change: dict[str, Any]) -> None:
    with pytest.raises(Unavailable) as caught:
        decode_super_stream({**encode_super_stream(SUPER_RECORD), **change})
    assert caught.value.code is Code.PEER_UNAVAILABLE


@pytest.mark.parametrize("body", [None, [], {}, "text", 7, {"super_id": "x"}])
def test_nonsense_is_manifests_fault(body: Any) -> None:
    with pytest.raises(Unavailable):
        decode_super_stream(body)


def test_paths_say_what_is_asked_for() -> None:
    assert super_by_name(ACME) == "/internal/v1/super-streams/by-name/events"
    assert super_by_id(SuperId(SUPER_ID)) == f"/internal/v1/super-streams/{SUPER_ID}"
    assert super_name_in({"name": "events"}, "acme") == ACME
    assert super_id_in({"super_id": SUPER_ID}) == SUPER_ID
    with pytest.raises(InvalidRequest):
        super_id_in({"super_id": "x"})
