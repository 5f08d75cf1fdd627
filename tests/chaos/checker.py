"""What has to be true when nothing disturbs any more: of records, manifest, store and disks.

Everything is looked at twice: as the services show it, and past them, where it lies.
"""

from functools import partial
from typing import Any, NamedTuple

import httpx
from support.numbered_records import parse
from support.stored_stream import Found
from support.valkey import another_client
from support.waiting import until

from bottomless.formats.keys import WAL_PREFIX, parse_wal_key
from bottomless.model.names import StreamId
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.stores.wal import instance_key
from chaos.deployment import ChaosDeployment
from chaos.ledger import Ledger

QUIET_SECONDS = 240.0


class Checked(NamedTuple):
    record_count: int
    fragment_count: int
    group_count: int
    stray_count: int
    """Objects that attempts left, which garbage collection found and deleted."""


def check(deployment: ChaosDeployment, ledgers: list[Ledger]) -> list[Checked]:
    """Raises AssertionError with what is wrong."""
    for ledger in ledgers:
        until(
            partial(_is_stored, deployment, ledger), QUIET_SECONDS, f"{ledger.name} to be uploaded"
        )
        _read_on(deployment, ledger)
        ledger.check_all()
        assert not ledger.faults, "\n".join(ledger.faults)
    found = [_check_stored(deployment, ledger) for ledger in ledgers]
    strays = [len(each.unreachable) for each in found]
    for ledger in ledgers:
        report = operation(deployment, f"{ledger.path}/manifest/verify", {"checksums": True})
        assert report["sound"], report
    for ledger, each in zip(ledgers, found, strict=True):
        after = until(partial(_cleaned, deployment, ledger), QUIET_SECONDS, f"{ledger.name} swept")
        count = len(each.values)
        assert after.values[:count] == each.values, f"{ledger.name}: changed by collecting garbage"
        _check_shown(deployment, ledger, after, count)
        ledger.check_all()
        assert not ledger.faults, "\n".join(ledger.faults)
    until(partial(_is_reclaimed, deployment), QUIET_SECONDS, "objects of leaderless streams to go")
    return [
        Checked(len(each.values), len(each.fragments), each.group_count, stray)
        for each, stray in zip(found, strays, strict=True)
    ]


def operation(deployment: ChaosDeployment, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Start one and return its result when it has succeeded."""
    accepted = deployment.retried(lambda client: client.post(path, json=body))
    way = f"/v1/operations/{accepted['operation_id']}"

    def done() -> dict[str, Any] | None:
        shown: dict[str, Any] = deployment.retried(lambda client: client.get(way))
        assert shown["state"] != "failed", shown
        return shown if shown["state"] == "succeeded" else None

    result: dict[str, Any] = until(done, QUIET_SECONDS, f"the end of {path}")["result"]
    return result


def _is_stored(deployment: ChaosDeployment, ledger: Ledger) -> bool:
    bounds = deployment.retried(lambda client: client.get(f"{ledger.path}/offsets"))
    return bool(bounds["object_store_next_offset"] == bounds["next_offset"] > 0)


def _read_on(deployment: ChaosDeployment, ledger: Ledger) -> None:
    """What came after the follower's end: appends that were given up and arrived all the same."""
    while True:
        parameters = {"offset": len(ledger.seen), "limit": 1_000, "on_out_of_range": "error"}
        page = deployment.retried(partial(_get, f"{ledger.path}/records", parameters))
        ledger.note_followed([(one["offset"], one["value"]) for one in page["records"]])
        if page["up_to_date"] or ledger.faults:
            return


def _get(path: str, parameters: dict[str, Any], client: httpx.Client) -> httpx.Response:
    return client.get(path, params=parameters)


def _look(deployment: ChaosDeployment, ledger: Ledger) -> Found:
    return deployment.stored_stream(StreamId(ledger.stream_id)).look()


def _check_stored(deployment: ChaosDeployment, ledger: Ledger) -> Found:
    """Objects hold what the follower saw, and the list of fragments says where."""
    count = len(ledger.seen)
    found = _look(deployment, ledger)
    assert found.first_offset == 0
    _check_shown(deployment, ledger, found, count)
    listed: list[tuple[str, int, int]] = []
    parameters = {"limit": "1000"}
    while True:
        page = deployment.retried(partial(_get, f"{ledger.path}/fragments", dict(parameters)))
        listed += [
            (one["id"], one["first_offset"], one["last_offset"] + 1) for one in page["fragments"]
        ]
        if page["next_page_token"] is None:
            break
        parameters["page_token"] = page["next_page_token"]
    there = [(one.fragment_id, one.first_offset, one.next_offset) for one in found.fragments]
    assert listed == there, f"{ledger.name}: the list of fragments is wrong"
    lost = {key for key in found.strangers if key.endswith(".fragment")}
    assert not lost, f"{ledger.name}: fragments that nobody knows of: {sorted(lost)}"
    return found


def _check_shown(deployment: ChaosDeployment, ledger: Ledger, found: Found, count: int) -> None:
    """The store holds what was shown, at least so many records. An append that was given up may
    arrive to the last: what is there by now beyond what was seen has to be shown as well."""
    stored = [parse(value) for value in found.values]
    if len(stored) > len(ledger.seen):
        _read_on(deployment, ledger)
    same = count <= len(stored) and stored == ledger.seen[: len(stored)]
    assert same, f"{ledger.name}: the store has other records than were shown"


def _collect_garbage(deployment: ChaosDeployment) -> None:
    report = operation(deployment, "/v1/admin/gc", {"dry_run": False, "minimum_age": "12s"})
    print(f"garbage: {report}")


def _cleaned(deployment: ChaosDeployment, ledger: Ledger) -> Found | None:
    """Nothing is left that the manifest does not lead to.

    Each look begins with a collection: the last thing that was left may be too young for one.
    """
    _collect_garbage(deployment)
    found = _look(deployment, ledger)
    return None if found.unreachable else found


def _is_reclaimed(deployment: ChaosDeployment) -> bool:
    """Whether of all objects of leaderless streams only those are left that are not settled.

    Those wait for the next commit of their writer, which lives. Seen past all services: so also what
    was put after its deletion, or after the death of its writer, and is named by nothing, has to go.
    """
    _collect_garbage(deployment)
    left = [parse_wal_key(key) for key in deployment.stored.sizes() if key.startswith(WAL_PREFIX)]
    with another_client(deployment.coordination_url) as client:
        for key in left:
            assert key is not None
            value: Any = client.get(instance_key(key.instance))
            if value is None or key.sequence < decode_instance(value).settled:
                return False
    return True
