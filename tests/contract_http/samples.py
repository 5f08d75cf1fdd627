"""A request for every operation of the contract, as it should be: what tests spoil, one thing at a time."""

from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from support.contract import JSON
from support.documents import Documented, documented

from contract_http.seeded import Known
from openapi.bundle import PUBLIC

STREAM: Final = "orders"
SUPER: Final = "events"
QUEUE: Final = "tasks"

BODIES: Final[dict[str, Any]] = {
    "append_records": {"records": [{"value": "a", "headers": {"b": "c"}}]},
    "put_stream": {"fragment": {"max_age_ms": 60_000}, "labels": {"a": "b"}},
    "patch_stream": {"fragment": {"max_age_ms": 70_000}},
    "put_super_stream": {"partitions": 3, "labels": {"a": "b"}},
    "patch_super_stream": {"fragment": {"max_age_ms": 70_000}},
    "put_consumer_offset": {"offset": 3},
    "join_super_group": {"member": "pod-a", "lease_ms": 30_000},
    "heartbeat_super_member": {"holding": {"0": 7}, "released": {}},
    "activate_super_member": {"partition": 0, "member": "pod-a"},
    "join_group": {"member": "pod-a", "lease_ms": 30_000},
    "heartbeat_member": {"holding": {"0": 7}, "released": {}},
    "activate_member": {"partition": 0, "member": "pod-a"},
    "preview_retention": {"retention": {"max_bytes": 1_000_000}},
    "evaluate_retention": {},
    "preview_tiers": {},
    "evaluate_tiers": {},
    "trim_stream": {"before_offset": 1},
    "grant_lease": {"first_offset": 0, "ttl_seconds": 60},
    "renew_lease": {"ttl_seconds": 60},
    "take_over_stream": {"accept_loss": True, "expect_home": "0" * 32},
    "accept_gap": {"accept_loss": True, "next_offset": 1},
    "collect_garbage": {"dry_run": True},
    "verify_manifest": {"checksums": False},
    "create_key": {"scopes": ["read"]},
    "rotate_key": {"overlap_seconds": 60},
    "put_queue": {"labels": {}},
    "patch_queue": {"visibility_ms": 60_000},
    "receive_messages": {"limit": 1, "visibility_ms": 0},
    "purge_queue": {"state": "damaged"},
    "redrive_messages": {"limit": 1},
    "take_over_queues": {"tenant": "default", "accept_loss": True, "expect_home": "0" * 32},
}
"""By operation id. An operation that is not here is sent its example, if it must have a body."""

QUERIES: Final = {"get_records": "offset=first", "get_offsets_resolve": "spec=first"}
HEADERS: Final = {
    "patch_stream": [("If-Match", "*")],
    "patch_super_stream": [("If-Match", "*")],
    "patch_queue": [("If-Match", "*")],
    # Its body is no JSON: tests/unit/ingest/test_staged.py spoils it.
    "stage_batches": [("Content-Type", "application/vnd.bottomless.batches")],
}


@dataclass(frozen=True)
class Sample:
    """One good request."""

    operation: Documented
    path: str
    query: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    value: Any = None
    """Of its body, where it has one."""

    @property
    def method(self) -> str:
        return self.operation.method.upper()

    @property
    def body(self) -> bytes | None:
        return None if self.value is None else orjson.dumps(self.value)

    @property
    def media_type(self) -> str:
        return self.operation.media_types[0] if self.operation.media_types else JSON

    def target(self, *parameters: str) -> str:
        """The path with the query it needs, and more of it."""
        query = "&".join(filter(None, (self.query, *parameters)))
        return f"{self.path}?{query}" if query else self.path

    def headers_with(self, *more: tuple[str, str]) -> list[tuple[str, str]]:
        """The headers that it needs, with its media type where it has a body."""
        kind = [] if self.value is None else [("Content-Type", self.media_type)]
        return [*self.headers, *kind, *more]


OPERATIONS: Final = [
    *{operation.name: operation for operation in documented(*PUBLIC)}.values(),
]
"""Every operation of the public contract, health once."""


def places(known: Known) -> dict[str, str]:
    """Path parameters that lead to something."""
    return {
        "s": STREAM,
        "c": "billing",
        "q": QUEUE,
        "p": "loader-7",
        "offset": "1",
        "fragment_id": str(known["fragments"][0]),
        "lease_id": str(known["leases"][0]),
        "operation_id": str(known["operations"][0]),
        "key_id": str(known["keys"][0]),
        "g": "auditors",
        "m": str(known["members"][0]),
    }


def sample(operation: Documented, known: Known) -> Sample:
    name = operation.operation_id
    there = places(known)
    if operation.path.startswith("/v1/super-streams/"):
        there["s"] = SUPER
    return Sample(
        operation,
        operation.path.format_map(operation.places | there),
        QUERIES.get(name, ""),
        [*HEADERS.get(name, [])],
        BODIES.get(name, operation.example),
    )
