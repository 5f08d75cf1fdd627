"""API keys in front of four processes: revoked everywhere in time, and kept by a rebuild."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.contract import problem_of
from support.separate_processes import FourProcesses, four_processes
from support.valkey import another_client, command
from support.waiting import until

REVOKED_SECONDS = 30
SECRET = secrets.token_hex(32)
ROOT = f"sk_root_{SECRET}"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourProcesses]:
    directory = tmp_path_factory.mktemp("keys")
    root_key = directory / "root-key"
    root_key.write_text(SECRET + "\n")
    settings = {
        "BOTTOMLESS_IDENTITY": "1",
        "BOTTOMLESS_ROOT_KEY_FILE": str(root_key),
        "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
        "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
    }
    with four_processes(directory, settings) as running:
        yield running


def client_of(url: str, credential: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {credential}"}
    return httpx.Client(base_url=url, headers=headers, timeout=30)


def create(deployment: FourProcesses, *scopes: str, credential: str = ROOT) -> dict[str, Any]:
    with client_of(deployment.url, credential) as client:
        answer = client.post("/v1/keys", json={"scopes": scopes})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def status_at(deployment: FourProcesses, service: str, credential: str) -> int:
    """What one service says to a key that may do everything, on a path of its own."""
    path = {"ingest": "/producers", "reader": "/offsets", "manifest": ""}[service]
    with client_of(deployment.services[service].url, credential) as client:
        return client.get(f"/v1/streams/keyed{path}").status_code


SERVICES = ("ingest", "reader", "manifest")


def test_a_revoked_key_is_refused_by_every_service_in_time(deployment: FourProcesses) -> None:
    """With the settings that everybody has."""
    key = create(deployment, "*")
    with client_of(deployment.url, key["secret"]) as client:
        assert client.put("/v1/streams/keyed").status_code in (200, 201)
    for service in SERVICES:
        until(lambda: status_at(deployment, service, key["secret"]) == 200, what=service)  # noqa: B023

    with client_of(deployment.url, ROOT) as client:
        assert client.delete(f"/v1/keys/{key['key_id']}").json()["state"] == "revoked"
    revoked_at = time.monotonic()

    for service in SERVICES:
        left = REVOKED_SECONDS - (time.monotonic() - revoked_at)
        until(lambda: status_at(deployment, service, key["secret"]) == 401, left, service)  # noqa: B023


def test_a_rebuild_brings_keys_back_and_none_that_was_revoked(deployment: FourProcesses) -> None:
    """C9's sister: coordination is lost, and only the root key can ask for its rebuild."""
    kept, dead, limited = (
        create(deployment, "*"),
        create(deployment, "*"),
        create(deployment, "read:keyed"),
    )
    with client_of(deployment.url, ROOT) as client:
        rotated = client.post(f"/v1/keys/{kept['key_id']}/rotate", json={"overlap_seconds": 0})
        assert client.delete(f"/v1/keys/{dead['key_id']}").status_code == 200
        listed = client.get("/v1/keys").json()["items"]
        with another_client(deployment.coordination_url) as valkey:
            command(valkey, "FLUSHALL")
        until(lambda: client.get("/v1/keys").status_code == 503, what="the loss noticed")

        begun = client.post("/v1/admin/rebuild")
        assert begun.status_code == 202, begun.text
        where = begun.headers["location"]

        def rebuilt() -> dict[str, Any] | None:
            operation = client.get(where)
            found: dict[str, Any] = operation.json()
            return found if found.get("state") in ("succeeded", "failed") else None

        operation = until(rebuilt, what="the rebuild")
        assert operation["state"] == "succeeded", operation
        assert operation["result"]["keys"] == len(listed)
        until(lambda: client.get("/v1/keys").status_code == 200, what="traffic again")
        assert client.get("/v1/keys").json()["items"] == listed

    until(lambda: status_at(deployment, "manifest", rotated.json()["secret"]) in (200, 404))
    for refused in (dead["secret"], kept["secret"]):
        until(lambda: status_at(deployment, "manifest", refused) == 401)  # noqa: B023
    with client_of(deployment.url, limited["secret"]) as client:
        problem_of(client.get("/v1/keys"), 403, "forbidden")
