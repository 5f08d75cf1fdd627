"""For each problem that a client can provoke by itself, a request that provokes it.

Wherever a request has room for it, it carries the canary: text that no answer may repeat.
"""

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from support.contract import JSON, QUICK, Answer, Stream
from support.server import AllInOne
from support.waiting import until

from bottomless.errors import Code
from contract_http.binary_bodies import FRAMES, frame_of
from contract_http.raw import Headers, send

CANARY: Final = "canary-7f3a"

_numbers = count()


@dataclass
class Scene:
    """A server, and a stream with something in it for each provocation."""

    server: AllInOne
    name: str = field(default_factory=lambda: f"{CANARY}-{next(_numbers)}")

    def __post_init__(self) -> None:
        with self.server.client() as client:
            stream = Stream(client, self.name)
            assert client.put(stream.path, json=QUICK).status_code == 201
            stream.append(f"{CANARY} a", "b", "c")

    def stored(self) -> "Scene":
        """The same with all of it in object storage, for what has to be there."""
        with self.server.client() as client:
            Stream(client, self.name).wait_uploaded()
        return self

    def stream(self, rest: str = "") -> str:
        return f"/v1/streams/{self.name}{rest}"

    def get(self, rest: str = "", *headers: tuple[str, str]) -> Answer:
        return send(self.server.url, "GET", self.stream(rest), headers)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """With what is said of the body already said."""
        named = [*headers]
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            named.append(("Content-Type", JSON))
        return send(self.server.url, method, path, named, body)

    def append(self, body: Any = None, **headers: str) -> Answer:
        wanted = {"records": [{"value": CANARY}]} if body is None else body
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        return self.ask("POST", self.stream("/records"), wanted, named)

    def strict(self, sequence: int, value: str = CANARY, **headers: str) -> Answer:
        numbered = {"Producer_Id": f"{CANARY}-p", "Producer_Seq": str(sequence), **headers}
        return self.append({"records": [{"value": value}]}, **numbered)

    def raw(self, body: bytes, media_type: str, *headers: tuple[str, str]) -> Answer:
        named: Headers = [("Content-Type", media_type), *headers]
        return send(self.server.url, "POST", self.stream("/records"), named, body)


def _trimmed(scene: Scene) -> Answer:
    # Whole fragments go: what was stored before is one of its own.
    assert scene.stored().append().status == 200
    trimmed = scene.stored().ask("POST", scene.stream("/trim"), {"before_offset": 3})
    assert trimmed.status == 202, trimmed.body

    def gone() -> Answer | None:
        answer = scene.get("/records?offset=0&on_out_of_range=error")
        return answer if answer.status != 200 else None

    return until(gone, what="the trim to be seen")


def _replaced(scene: Scene) -> Answer:
    other = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    return scene.get(f"/records?offset=0&expect_stream_id={other}")


def _fenced(scene: Scene) -> Answer:
    path = scene.stream(f"/producers/{CANARY}-p/epoch")
    assert scene.ask("POST", path).status == 200
    return scene.strict(0)


def _overlapping(scene: Scene) -> Answer:
    assert scene.strict(0).status == 200
    return scene.strict(0, "other")


def _in_a_gap(scene: Scene) -> Answer:
    assert scene.strict(0).status == 200
    return scene.strict(5)


def _in_another_mode(scene: Scene) -> Answer:
    assert scene.strict(0).status == 200
    return scene.append(Producer_Id=f"{CANARY}-p", Txn_Number="1")


def _of_another_key(scene: Scene) -> Answer:
    assert scene.append(Idempotency_Key=CANARY).status == 200
    return scene.append({"records": [{"value": "other"}]}, Idempotency_Key=CANARY)


def _back(scene: Scene) -> Answer:
    path = scene.stream(f"/consumers/{CANARY}/offset")
    assert scene.ask("PUT", path, {"offset": 2}).status == 200
    return scene.ask("PUT", path, {"offset": 1})


def _member(scene: Scene, name: str = CANARY) -> str:
    made = scene.ask("POST", scene.stream(f"/groups/{CANARY}/members"), {"member": name})
    assert made.status == 201, made.body
    return str(made.json()["member_id"])


def _fenced_by_a_group(scene: Scene) -> Answer:
    _member(scene)
    return scene.ask("PUT", scene.stream(f"/consumers/{CANARY}/offset"), {"offset": 1})


def _read_by_nobody(scene: Scene) -> Answer:
    named = (("Group-Member", _member(scene)), ("Group-Generation", "99"))
    return scene.get("/records?offset=0", *named)


def _of_another_strategy(scene: Scene) -> Answer:
    _member(scene)
    body = {"member": CANARY, "strategy": "range"}
    return scene.ask("POST", scene.stream(f"/groups/{CANARY}/members"), body)


def _of_a_whole(scene: Scene) -> Answer:
    scene.ask("PUT", f"/v1/super-streams/{scene.name}-s", {"partitions": 1})
    return scene.ask("DELETE", f"/v1/streams/{scene.name}-s-0")


def _without_a_route(scene: Scene) -> Answer:
    path = f"/v1/super-streams/{scene.name}-k"
    scene.ask("PUT", path, {"binding_keys": ["emea"]})
    return scene.ask("POST", f"{path}/records", {"records": [{"value": CANARY, "key": CANARY}]})


def _with_a_member(scene: Scene) -> Answer:
    _member(scene)
    return scene.ask("DELETE", scene.stream(f"/groups/{CANARY}"))


def _too_many(scene: Scene) -> Answer:
    for _ in range(64):
        granted = scene.ask("POST", scene.stream("/leases"), {"first_offset": 0})
        assert granted.status == 201, granted.body
    return scene.ask("POST", scene.stream("/leases"), {"first_offset": 0, "holder": CANARY})


def _queue(scene: Scene, name: str, config: dict[str, Any] | None = None) -> str:
    path = f"/v1/queues/{scene.name}-{name}"
    assert scene.ask("PUT", path, config or {}).status == 201
    return path


def _of_another_configuration(scene: Scene) -> Answer:
    return scene.ask("PUT", _queue(scene, "exists"), {"labels": {"a": CANARY}})


def _with_dead_letters_of_others(scene: Scene) -> Answer:
    path = _queue(scene, "target")
    _queue(scene, "source", {"dead_letter": {"queue": path.rpartition("/")[2]}})
    return scene.ask("DELETE", path)


def _with_a_message(scene: Scene) -> Answer:
    path = _queue(scene, "not-empty")
    body = {"messages": [{"value": CANARY}]}
    assert scene.ask("POST", f"{path}/messages", body).status == 200
    return scene.ask("DELETE", f"{path}?if_empty=true")


def _full(scene: Scene) -> Answer:
    path = _queue(scene, "full", {"max_messages": 1})
    message = {"messages": [{"value": CANARY}]}
    assert scene.ask("POST", f"{path}/messages", message).status == 200
    return scene.ask("POST", f"{path}/messages", message)


def _unowned(scene: Scene) -> Answer:
    path = f"/v1/streams/{scene.name}-unowned"
    assert scene.ask("PUT", path).status == 201
    body = {"accept_loss": True, "next_offset": 1}
    return scene.ask("POST", f"/v1/admin/streams/{scene.name}-unowned/gap", body)


def _not_active(scene: Scene) -> Answer:
    made = scene.ask("POST", "/v1/keys", {"scopes": ["read"], "label": CANARY}).json()
    assert scene.ask("DELETE", f"/v1/keys/{made['key_id']}").status == 200
    return scene.ask("POST", f"/v1/keys/{made['key_id']}/rotate")


def _beyond_fragment(scene: Scene) -> Answer:
    listed = scene.stored().get("/fragments").json()["fragments"]
    return scene.get(f"/fragments/{listed[0]['id']}", ("Range", "bytes=999999-"))


def _with_wrong_sum(scene: Scene) -> Answer:
    body = bytearray(frame_of([CANARY.encode()]))
    body[-1] ^= 1
    return scene.raw(bytes(body), FRAMES)


def _unstaged(scene: Scene) -> Answer:
    body = json.dumps({"staged": ["st_" + "0" * 32]}).encode()
    named = (("Producer-Id", f"{CANARY}-p"), ("Txn-Number", "1"))
    return scene.raw(body, "application/vnd.bottomless.staged+json", *named)


def _headers_too_large(scene: Scene) -> Answer:
    return scene.get("", *((f"X-{number}", CANARY * 500) for number in range(20)))


PROVOKED: Final[dict[Code, Callable[[Scene], Answer]]] = {
    Code.MALFORMED_JSON: lambda scene: scene.raw(f'{{"{CANARY}": '.encode(), JSON),
    Code.UNKNOWN_PARAMETER: lambda scene: scene.get(f"/offsets?%20{CANARY}={CANARY}"),
    Code.DUPLICATE_PARAMETER: lambda scene: scene.get(
        f"/records?offset=stored&consumer={CANARY}&consumer={CANARY}"
    ),
    Code.BAD_PARAMETER: lambda scene: scene.get(f"/records?offset=0&limit={CANARY}"),
    Code.BAD_OFFSET_SPEC: lambda scene: scene.get(f"/records?offset={CANARY}"),
    Code.BAD_HEADER: lambda scene: scene.append(Producer_Id=f"{CANARY}!", Producer_Seq="0"),
    Code.BAD_NAME: lambda scene: scene.ask("GET", f"/v1/streams/-{CANARY}"),
    Code.HOST_NOT_ALLOWED: lambda scene: scene.ask(
        "GET", "/v1/streams", headers=[("Host", f"{CANARY}.example")]
    ),
    Code.ORIGIN_NOT_ALLOWED: lambda scene: scene.ask(
        "POST",
        scene.stream("/retention/evaluate"),
        headers=[("Origin", f"http://{CANARY}.example")],
    ),
    Code.NOT_FOUND: lambda scene: scene.ask("GET", f"/v1/{CANARY}"),
    Code.STREAM_NOT_FOUND: lambda scene: scene.get("-no/offsets"),
    Code.CONSUMER_NOT_FOUND: lambda scene: scene.get(f"/consumers/{CANARY}"),
    Code.OPERATION_NOT_FOUND: lambda scene: scene.ask("GET", f"/v1/operations/op_{'0' * 32}"),
    Code.LEASE_NOT_FOUND: lambda scene: scene.ask("PUT", scene.stream(f"/leases/{CANARY}"), {}),
    Code.FRAGMENT_NOT_FOUND: lambda scene: scene.get(f"/fragments/{CANARY}"),
    Code.PRODUCER_NOT_FOUND: lambda scene: scene.get(f"/producers/{CANARY}"),
    Code.STAGED_NOT_FOUND: _unstaged,
    Code.OFFSET_NOT_FOUND: lambda scene: scene.get(f"/consumers/{CANARY}/offset"),
    Code.KEY_NOT_FOUND: lambda scene: scene.ask("GET", f"/v1/keys/{'0' * 24}"),
    Code.QUEUE_NOT_FOUND: lambda scene: scene.ask("GET", f"/v1/queues/{CANARY}"),
    Code.GROUP_NOT_FOUND: lambda scene: scene.get(f"/groups/{CANARY}"),
    Code.MEMBER_EXPIRED: lambda scene: scene.ask(
        "POST", scene.stream(f"/groups/{CANARY}/members/{'0' * 32}/heartbeat"), {}
    ),
    Code.METHOD_NOT_ALLOWED: lambda scene: scene.ask("DELETE", scene.stream("/records")),
    Code.NOT_ACCEPTABLE: lambda scene: scene.get("/offsets", ("Accept", f"text/{CANARY}")),
    Code.UNSUPPORTED_MEDIA_TYPE: lambda scene: scene.raw(b"{}", f"text/{CANARY}"),
    Code.URI_TOO_LONG: lambda scene: scene.get(f"/records?offset={CANARY * 1000}"),
    Code.HEADERS_TOO_LARGE: _headers_too_large,
    Code.STREAM_EXISTS: lambda scene: scene.ask("PUT", scene.stream(), {"labels": {"a": CANARY}}),
    Code.STREAM_REPLACED: _replaced,
    Code.PRODUCER_FENCED: _fenced,
    Code.PRODUCER_SEQUENCE_GAP: _in_a_gap,
    Code.PRODUCER_SEQUENCE_OVERLAP: _overlapping,
    Code.PRODUCER_UNKNOWN: lambda scene: scene.strict(7),
    Code.PRODUCER_MODE_CONFLICT: _in_another_mode,
    Code.OFFSET_REGRESSION: _back,
    Code.CONSUMER_FENCED: _fenced_by_a_group,
    Code.NOT_ACTIVE: _read_by_nobody,
    Code.GROUP_MISMATCH: _of_another_strategy,
    Code.GROUP_NOT_EMPTY: _with_a_member,
    Code.QUEUE_EXISTS: _of_another_configuration,
    Code.QUEUE_IN_USE: _with_dead_letters_of_others,
    Code.QUEUE_NOT_EMPTY: _with_a_message,
    Code.PARTITION_OF_SUPER_STREAM: _of_a_whole,
    Code.NO_ROUTE: _without_a_route,
    Code.HOME_LIVE: lambda scene: scene.ask(
        "POST",
        f"/v1/admin/streams/{scene.name}/takeover",
        {"accept_loss": True, "expect_home": "0" * 32},
    ),
    Code.COORDINATION_INTACT: lambda scene: scene.ask("POST", "/v1/admin/rebuild"),
    Code.KEY_NOT_ACTIVE: _not_active,
    Code.OFFSET_TRIMMED: _trimmed,
    Code.OFFSET_MISMATCH: lambda scene: scene.append(Stream_Expected_Offset="0"),
    Code.ETAG_MISMATCH: lambda scene: scene.ask(
        "PATCH", scene.stream(), {}, [("If-Match", f'"{CANARY}"')]
    ),
    Code.OFFSET_OUT_OF_RANGE: lambda scene: scene.get("/records?offset=99&on_out_of_range=error"),
    Code.RANGE_NOT_SATISFIABLE: _beyond_fragment,
    Code.BODY_TOO_LARGE: lambda scene: scene.raw(CANARY.encode() * 900_000, JSON),
    Code.RECORD_TOO_LARGE: lambda scene: scene.raw(
        CANARY.encode() * 100_000, "application/octet-stream"
    ),
    Code.BATCH_TOO_LARGE: lambda scene: scene.append({"records": [{"value": CANARY}] * 10_001}),
    Code.DECOMPRESSED_TOO_LARGE: lambda scene: scene.raw(
        gzip.compress(CANARY.encode() * 900_000), JSON, ("Content-Encoding", "gzip")
    ),
    Code.VALIDATION_FAILED: lambda scene: scene.append({"records": [{CANARY: CANARY}]}),
    Code.NUMBER_OUT_OF_RANGE: lambda scene: scene.append({"records": [{"json": {CANARY: 10**30}}]}),
    Code.CRC_MISMATCH: _with_wrong_sum,
    Code.IDEMPOTENCY_MISMATCH: _of_another_key,
    Code.OFFSET_BEYOND_END: lambda scene: scene.ask(
        "POST", scene.stream("/trim"), {"before_offset": 99}
    ),
    Code.DRIVE_UNKNOWN: lambda scene: scene.ask("POST", "/v1/admin/drives", {"name": CANARY}),
    Code.PRECONDITION_REQUIRED: lambda scene: scene.ask(
        "PATCH", scene.stream(), {"labels": {CANARY: CANARY}}
    ),
    Code.NOT_OWNER: _unowned,
    Code.QUEUE_FULL: _full,
    Code.QUOTA_EXCEEDED: _too_many,
}

_JOURNEYS: Final = "tests/journeys"
ELSEWHERE: Final[dict[Code, tuple[str, str]]] = {
    # It takes a credential, or somebody else's doing.
    Code.UNAUTHENTICATED: (
        f"{_JOURNEYS}/test_scenarios_identity.py",
        "test_a_bad_credential_is_401_whatever_is_asked",
    ),
    Code.FORBIDDEN: (
        f"{_JOURNEYS}/test_scenarios_identity.py",
        "test_scopes_and_prefixes_are_kept_to_the_letter",
    ),
    Code.RATE_LIMITED: (
        f"{_JOURNEYS}/test_scenarios_rates.py",
        "test_who_asks_too_much_is_told_when_to_come_back_and_others_are_not",
    ),
    # It takes other nodes that hold the stream.
    Code.NOT_ENOUGH_REPLICAS: (
        "tests/unit/ingest/test_other_nodes.py",
        "test_too_few_nodes_take_no_append_after_a_while",
    ),
    Code.IN_SYNC_LIVE: (
        "tests/unit/manifest/test_takeovers.py",
        "test_a_takeover_waits_for_a_node_in_sync_that_goes_on_by_itself",
    ),
    Code.NOT_IN_SYNC: (
        "tests/unit/ingest/test_failover_nodes.py",
        "test_a_stream_is_not_given_to_a_node_that_does_not_live",
    ),
    # It takes time: a slow client, many at once, an object that is deleted after its grace.
    Code.REQUEST_TIMEOUT: (
        "tests/unit/runtime/test_runtime_protocol.py",
        "test_a_body_that_does_not_come_is_answered_408_and_its_request_is_given_up",
    ),
    Code.IDEMPOTENCY_IN_FLIGHT: (
        f"{_JOURNEYS}/test_scenarios_producers.py",
        "test_a_key_sent_by_many_at_once_is_stored_once",
    ),
    Code.RANGE_CONDEMNED: (
        f"{_JOURNEYS}/test_scenarios_retention.py",
        "test_a_lease_holds_what_is_trimmed_until_it_is_given_back",
    ),
    Code.OVERLOADED: (
        "tests/unit/runtime/test_runtime_protocol.py",
        "test_a_listener_has_a_bound_on_connections_and_says_so",
    ),
    Code.SUPER_STREAM_GROWING: (
        "tests/unit/ingest/test_super_produce.py",
        "test_while_it_grows_nothing_is_taken",
    ),
    Code.DRAINING: (
        "tests/unit/runtime/test_runtime_service.py",
        "test_while_it_drains_it_is_not_ready_refuses_and_finishes_what_is_in_flight",
    ),
    # It is said between services.
    Code.MOVED: (
        "tests/unit/ingest/test_ownership.py",
        "test_a_clean_stream_moves_after_the_lease_and_starts_where_it_is_published",
    ),
    Code.FENCED: ("tests/unit/manifest/test_manifest_api.py", "test_an_old_session_is_fenced"),
    # Something behind the services has to fail.
    Code.COMMIT_TIMEOUT: (
        "tests/unit/ingest/leaderless/test_writer_faults.py",
        "test_nobody_waits_for_ever_for_a_commit_that_nobody_can_decide",
    ),
    Code.DISK_BOUND: (
        "tests/unit/ingest/test_failing_disk.py",
        "test_local_logs_are_bounded",
    ),
    Code.TAIL_BOUND: (
        "tests/unit/ingest/leaderless/test_appenders.py",
        "test_a_full_tail_is_told_so_and_may_be_tried_again",
    ),
    # No request may make a leaderless stream yet.
    Code.STREAM_FENCED: (
        "tests/unit/ingest/leaderless/test_appenders.py",
        "test_a_fenced_stream_answers_repeats_and_takes_nothing_new",
    ),
    Code.STORAGE_FULL: (
        "tests/unit/ingest/test_failing_disk.py",
        "test_a_full_disk_refuses_and_takes_again_when_there_is_room",
    ),
    Code.STORAGE_FAILED: (
        "tests/unit/ingest/test_failing_disk.py",
        "test_another_write_error_is_said_to_be_one",
    ),
    Code.DRIVE_IN_USE: (
        "tests/unit/manifest/test_drive_registration.py",
        "test_a_store_that_is_a_drive_already_is_refused_and_nothing_is_written",
    ),
    Code.OBJECT_STORE_UNAVAILABLE: (
        "tests/faults/test_reads.py",
        "test_while_no_get_is_answered_right_no_page_is_given",
    ),
    Code.COORDINATION_UNAVAILABLE: (
        f"{_JOURNEYS}/test_trouble.py",
        "test_coordination_that_is_away_is_an_answer_and_loses_nothing",
    ),
    Code.COORDINATION_REGRESSED: (
        f"{_JOURNEYS}/test_scenarios_registry.py",
        "test_an_emptied_coordination_store_is_never_taken_for_deleted_streams",
    ),
    Code.PEER_UNAVAILABLE: (
        "tests/deploy/test_nginx_passing.py",
        "test_a_service_that_hangs_up_is_not_asked_again_and_nobody_knows_what_it_wrote",
    ),
    Code.CLOCK_SKEW: (
        f"{_JOURNEYS}/test_scenarios_clocks.py",
        "test_m28_a_clock_that_jumps_ahead_stops_appends_until_it_is_back",
    ),
    Code.DATA_CORRUPT: (
        f"{_JOURNEYS}/test_scenarios_repair.py",
        "test_a_damaged_byte_is_an_error_where_it_lies_and_verify_names_it",
    ),
    Code.DATA_MISSING: (
        "tests/unit/reader/test_reader_records.py",
        "test_a_fragment_that_is_gone_is_named",
    ),
    Code.LOCAL_LOG_LOST: (
        f"{_JOURNEYS}/test_lost_segments.py",
        "test_behind_lost_segments_the_stream_goes_on_once_the_loss_is_accepted",
    ),
    # A bug is needed, which the test brings along.
    Code.INTERNAL: (
        "tests/unit/runtime/test_runtime_problems.py",
        "test_a_bug_is_logged_and_shows_nothing",
    ),
}
"""What no request alone provokes, why, and the test that sees it."""
