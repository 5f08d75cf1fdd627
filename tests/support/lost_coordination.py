"""Coordination that forgets everything, seen and mended as an operator does it."""

from typing import Final

import httpx

from support.valkey import another_client, command
from support.waiting import until

REGRESSED: Final = "coordination-regressed"


def flush(url: str) -> None:
    """Let the Valkey at this URL forget everything."""
    with another_client(url) as valkey:
        command(valkey, "FLUSHALL")


def await_loss(client: httpx.Client) -> None:
    """Return when manifest has noticed, and refuses to list what it does not know."""

    def refused() -> bool:
        answer = client.get("/v1/streams")
        return answer.status_code == 503 and answer.json()["code"] == REGRESSED

    until(refused, what="the loss noticed")


def rebuild(client: httpx.Client) -> dict[str, int]:
    """Rebuild coordination from the bucket, and return its result when traffic goes on."""
    answer = client.post("/v1/admin/rebuild")
    assert answer.status_code == 202, answer.text
    path = f"/v1/operations/{answer.json()['operation_id']}"

    def finished() -> dict[str, object] | None:
        found = client.get(path)
        if found.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            # Of a store that does not answer at the moment.
            return None
        assert found.status_code == 200, found.text
        return found.json() if found.json()["state"] in ("succeeded", "failed") else None

    operation = until(finished, what="the rebuild")
    assert operation["state"] == "succeeded", operation
    until(lambda: client.get("/v1/streams").status_code == 200, what="traffic again")
    result: dict[str, int] = operation["result"]  # type: ignore[assignment]
    return result
