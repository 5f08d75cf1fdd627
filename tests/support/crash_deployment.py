"""A process that can be told where to die, on a Valkey and an S3 server that outlive it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bottomless.formats.stream_record import decode_record
from bottomless.model.api_key import hash_secret
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.stores.keys import UNSAVED_KEY
from bottomless_server.stores.streams import DELETES_KEY, node_key, stream_key
from support.object_keys import stream_prefix
from support.on_s3 import OnS3, running_on_s3
from support.s3 import S3Server
from support.stored import stored_in_s3
from support.stored_stream import Found
from support.valkey import another_client, command
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_FAULT_POINTS": "1",
    "BOTTOMLESS_MANIFEST_FANOUT": "2",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "200",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "500",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_OPERATION_LEASE_MS": "500",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    # What a rebuild mends is not known to be mended, and tried again so much later.
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "1",
    "BOTTOMLESS_UPLOADER_RETRY_JITTER_SECONDS": "0.1",
}
TARGET = 65_536
"""Bytes; each append is a little more, and so one fragment."""
LOAD_COUNT_MAX = 30


_numbers = itertools.count(1)


@dataclass
class Driven:
    """One stream under a strict producer who sends again what he was not told the outcome of."""

    deployment: "CrashDeployment"
    name: str
    stream_id: StreamId
    values: list[str] = field(default_factory=list)
    """Acknowledged, by offset."""

    @property
    def path(self) -> str:
        return f"/v1/streams/{self.name}"

    def offer(self) -> bool:
        """Send the next record; whether it was acknowledged. False too where the process died."""
        number = len(self.values)
        value = f"{self.name} {number} " + "x" * TARGET
        headers = {"producer-id": "p", "producer-seq": str(number)}
        body = {"records": [{"value": value}]}
        answer = self.deployment.ask("POST", f"{self.path}/records", body, headers)
        if answer is None or answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return False
        assert answer.status_code == httpx.codes.OK, answer.text
        assert answer.json()["first_offset"] == number
        self.values.append(value)
        return True

    def drive_until_dead(self) -> None:
        """Append until the process dies where it was told to, and start it again."""
        for _ in range(LOAD_COUNT_MAX):
            if not self.offer() and self.deployment.server.is_dead:
                break
        self.deployment.server.revive()
        # What was on its way may be stored, or not; sent again as it was, it is, once.
        self.fill(1)

    def fill(self, count: int) -> "Driven":
        for _ in range(count):
            until(self.offer, what="an append")
        return self

    def look(self) -> Found:
        """What is stored, once everything acknowledged is and nothing waits to be deleted."""
        deployment = self.deployment
        until(lambda: deployment.bounds_of(self)["object_store_next_offset"] == len(self.values))
        until(lambda: not deployment.queued(self.stream_id), what="the delete queue empty")
        return deployment.stored_stream(self.stream_id).look()

    def check(self, found: Found) -> None:
        """What is stored and what the API reads are what was acknowledged, from the floor on."""
        floor = found.first_offset
        assert [f"{one} {n}" for n, one in enumerate(found.values, floor)] == [
            f"{one} {n}" for n, one in enumerate(self.values[floor:], floor)
        ]
        read, offset = [], "first"
        while True:
            page = self.deployment.asked(
                "GET", f"{self.path}/records?offset={offset}&limit=100"
            ).json()
            read += [(record["offset"], record["value"]) for record in page["records"]]
            offset = str(page["next_offset"])
            if page["up_to_date"]:
                break
        assert read == list(enumerate(self.values))[floor:]
        assert not found.pending, "an intent or a quarantine was left"


class CrashDeployment(OnS3):
    """Its process can be told where to die: `server.arm`, and then `server.revive`."""

    def inside(self) -> httpx.Client:
        """A client of the manifest's internal listener."""
        return self.server.internal("manifest")

    def lets_in(self, credential: str) -> bool:
        """Whether an API key is good, as the gate of a service would find."""
        _, key_id, secret = credential.split("_", 2)
        with self.inside() as client:
            found = client.get(f"/internal/v1/keys/{key_id}")
        return found.is_success and hash_secret(secret) in found.json()["secret_sha256"]

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response | None:
        """None where the process died, or is dead."""
        try:
            return httpx.request(
                method, self.server.url + path, json=body, headers=headers, timeout=30
            )
        except httpx.TransportError:
            return None

    def asked(self, method: str, path: str, body: Any = None) -> httpx.Response:
        answer = self.ask(method, path, body)
        assert answer is not None
        assert answer.is_success, answer.text
        return answer

    def bounds_of(self, stream: Driven) -> dict[str, Any]:
        answer = self.ask("GET", f"{stream.path}/offsets")
        if answer is None or not answer.is_success:
            return {"object_store_next_offset": -1, "first_offset": -1}
        found: dict[str, Any] = answer.json()
        return found

    def new_stream(self) -> Driven:
        name = f"crash-{next(_numbers)}"
        created = self.asked(
            "PUT", f"/v1/streams/{name}", {"fragment": {"target_bytes": TARGET, "max_age_ms": 100}}
        )
        return Driven(self, name, StreamId(created.json()["stream_id"]))

    def queued(self, stream_id: StreamId) -> list[bytes]:
        with another_client(self.coordination_url) as client:
            members = client.zrange(DELETES_KEY, 0, -1)
        named = [member for member in members if isinstance(member, bytes)]
        return [member for member in named if stream_id.encode() in member]

    def unsaved_keys(self) -> list[object]:
        """API keys whose revocation may not be in the bucket."""
        with another_client(self.coordination_url) as client:
            return list(client.zrange(UNSAVED_KEY, 0, -1))

    def has_record(self, stream_id: StreamId) -> bool:
        with another_client(self.coordination_url) as client:
            return client.get(stream_key(stream_id)) is not None

    def objects_of(self, stream_id: StreamId) -> list[str]:
        return [key for key in self.stored.sizes() if key.startswith(stream_prefix(stream_id))]

    def lose_coordination(self) -> None:
        with another_client(self.coordination_url) as client:
            command(client, "FLUSHALL")

    def record_of(self, stream_id: StreamId) -> StreamRecord:
        with another_client(self.coordination_url) as client:
            value = client.get(stream_key(stream_id))
        assert isinstance(value, bytes)
        return decode_record(value)

    def give_up_lease(self, stream_id: StreamId) -> NodeId:
        """Let the lease of the stream's home be over, whose process is dead; which home it was."""
        home = self.record_of(stream_id).home
        assert home is not None
        with another_client(self.coordination_url) as client:
            client.delete(node_key(home))
        return home


@contextmanager
def crash_deployment(directory: Path, s3: S3Server) -> Iterator[CrashDeployment]:
    with (
        stored_in_s3(s3) as stored,
        running_on_s3(directory, stored, SETTINGS) as (server, coordination_url),
    ):
        yield CrashDeployment(server, stored, coordination_url)
