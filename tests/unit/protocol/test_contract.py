"""Every message is what openapi/internal.yaml says of it."""

from dataclasses import replace
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from bottomless.model.config import FilterConfig
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import NodeId, Reference
from bottomless_server.protocol.fetched import FragmentFetched, encode_fetched
from bottomless_server.protocol.keys import encode_key
from bottomless_server.protocol.registry import (
    NodeSaid,
    encode_names_asked,
    encode_names_shown,
    encode_nodes,
    encode_registered,
    encode_root,
    encode_stored_offset,
    encode_stream,
    encode_streams,
)
from bottomless_server.protocol.tail import (
    ChunkRun,
    Commits,
    Located,
    Published,
    SegmentPart,
    encode_commits,
    encode_located,
    encode_published,
    encode_run,
    moved,
)
from bottomless_server.protocol.uploads import (
    Opened,
    Registered,
    encode_abandon,
    encode_begin,
    encode_intended,
    encode_intents_asked,
    encode_opened,
    encode_register,
)
from bottomless_server.protocol.uploads import encode_registered as encode_fragments_registered
from openapi.bundle import OPENAPI, read
from unit.protocol.test_manifest_messages import ACME, FILTERED, INFO, KEY, RECORD, STATE
from unit.protocol.test_tail_messages import BOUNDS, COMMIT, NO_RECORDS
from unit.protocol.wire import STREAM_ID, received, sent

CONTRACT: dict[str, Any] = read(OPENAPI / "internal.yaml")


def _operation(operation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        operation
        for item in CONTRACT["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict) and operation.get("operationId") == operation_id
    )
    return found


def _schema(content: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in content:
        content = CONTRACT["components"]["responses"][content["$ref"].rpartition("/")[2]]
    schema: dict[str, Any] = content["content"]["application/json"]["schema"]
    return schema


def _fits(message: Any, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": CONTRACT["components"]}
    OAS31Validator(whole).validate(received(sent(message)))


@pytest.mark.parametrize(
    ("operation_id", "message"),
    [
        ("get_commits", encode_commits(Commits("a.1", (COMMIT,)))),
        ("locate", encode_located(Located(12, BOUNDS))),
        ("locate", encode_located(Located(None, NO_RECORDS))),
        ("get_nodes", encode_nodes([NodeSaid("0" * 32, "http://a:1")])),
        ("find_streams_by_name", encode_streams({ACME: STREAM_ID})),
        ("get_names_shown", encode_names_shown(3, "0" * 32)),
        ("get_names_shown", encode_names_shown(None, None)),
        ("get_stream", encode_stream(RECORD)),
        ("get_stream_by_name", encode_stream(replace(RECORD, home=None, owner_url=None))),
        ("put_registry", encode_registered(1)),
        ("get_root", encode_root(STATE)),
        ("get_root", encode_root(replace(STATE, root=None))),
        ("get_stored_offset", encode_stored_offset(StoredOffset(Reference("c1"), 9, 1_000, 4))),
        ("begin_uploads", encode_opened(Opened(20, 5, 7, "acme"))),
        ("add_intents", encode_intended([INFO.uid], FilterConfig())),
        ("add_intents", encode_intended([INFO.uid], FilterConfig(index="values"))),
        ("add_intents", encode_intended([INFO.uid], FilterConfig(), 254)),
        ("register_fragments", encode_fragments_registered(Registered(40, 6, (INFO.uid,), ()))),
        ("get_key_check", encode_key(KEY)),
    ],
)
def test_each_answer_fits_the_contract(operation_id: str, message: Any) -> None:
    _fits(message, _schema(_operation(operation_id)["responses"]["200"]))


@pytest.mark.parametrize(
    ("operation_id", "message"),
    [
        ("put_published", encode_published(Published(20, 5))),
        ("find_streams_by_name", encode_names_asked([ACME])),
        ("begin_uploads", encode_begin("s1")),
        ("add_intents", encode_intents_asked("s1", (20, 30))),
        ("add_intents", encode_intents_asked("s1", (20, 30), (1, 254))),
        ("register_fragments", encode_register("s1", [INFO, FILTERED])),
        ("abandon_intents", encode_abandon("s1", [INFO.uid])),
        ("tell_fetched", encode_fetched([FragmentFetched(STREAM_ID, 20, 254, 1_000)])),
    ],
)
def test_each_question_fits_the_contract(operation_id: str, message: Any) -> None:
    _fits(message, _schema(_operation(operation_id)["requestBody"]))


def test_the_headers_of_a_run_are_those_of_the_contract() -> None:
    told = _operation("get_chunks")["responses"]["200"]["headers"]
    needed = {name.lower() for name, header in told.items() if header.get("required")}
    run = ChunkRun(BOUNDS, 12, 34, 2_048, b"")

    in_file = run._replace(part=SegmentPart("/data/1.segment", 64, 1_000, 10, 7))
    followed = in_file._replace(followers=(NodeId("0" * 32),))
    assert encode_run(followed).keys() == {name.lower() for name in told}
    assert encode_run(in_file).keys() - encode_run(run).keys() == {
        name.lower() for name in told if "File" in name or "Segment" in name
    }
    assert encode_run(run._replace(bounds=NO_RECORDS)).keys() == needed


def test_what_has_moved_tells_the_bounds_of_the_contract() -> None:
    _fits(dict(moved(BOUNDS).facts), CONTRACT["components"]["schemas"]["Bounds"])
