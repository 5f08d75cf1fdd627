"""A change whose reply was lost, and a store that is away when it is made again: nobody knows what became
of it, and nobody says that nothing was done."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from support.guards import remove
from support.manifest import Fault, ManifestHarness, a_record
from unit.manifest.test_manifest_api import running

from bottomless.errors import Outcome, Unavailable
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.manifest.consumers.consumer_commits import ConsumerCommits
from bottomless_server.manifest.consumers.core.consumers import Commit, offset_etag

STREAM, SUPER = "/v1/streams/orders", "/v1/super-streams/events"
PATCH = {"content-type": "application/merge-patch+json", "if-match": "*"}
WEEK = {"retention": {"max_age": "7d"}}
CHANGES: list[tuple[str, str, Any, dict[str, str]]] = [
    ("PUT", "/v1/streams/new", {}, {}),
    ("PATCH", STREAM, WEEK, PATCH),
    ("DELETE", STREAM, None, {}),
    ("PUT", "/v1/super-streams/new", {"partitions": 2}, {}),
    ("PATCH", SUPER, WEEK, PATCH),
    ("PATCH", SUPER, {"partitions": 5, "accept_rehash": True}, PATCH),
    ("DELETE", SUPER, None, {}),
    ("PUT", f"{STREAM}/consumers/billing/offset", {"next_offset": 0}, {}),
    ("POST", f"{STREAM}/groups/billing/members", {"member": "m"}, {}),
]


async def outcome_of(change: tuple[str, str, Any, dict[str, str]], fault: Fault) -> str:
    method, path, body, headers = change
    harness = a_quiet_harness()
    async with running(harness) as service:
        assert (await service.public.put(STREAM, json={})).status_code == 201
        assert (await service.public.put(SUPER, json={"partitions": 3})).status_code == 201
        harness.coordination.faults = [fault, Fault.UNAVAILABLE]
        answer = await service.public.request(method, path, json=body, headers=headers)
        assert answer.status_code == 503, answer.text
        return str(answer.json()["outcome"])


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: f"{one[0]} {one[1]}")
@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_nobody_says_that_nothing_was_done(
    fault: Fault, change: tuple[str, str, Any, dict[str, str]]
) -> None:
    assert await outcome_of(change, fault) == "unknown"


async def test_without_its_guard_a_deletion_that_was_done_counts_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "a lost reply, remembered when the store is away at the second attempt"
    remove(monkeypatch, name, lambda _, error: error)
    assert await outcome_of(CHANGES[2], Fault.LOST_APPLIED) == "none"


MADE = {
    "/v1/streams/new": ({}, "stream_id"),
    "/v1/super-streams/new": ({"partitions": 2}, "super_id"),
}


def a_quiet_harness() -> ManifestHarness:
    """One in which no collection of garbage is begun: it would take the fault that is meant for a request."""
    return ManifestHarness(manifest_gc_interval_ms=0)


async def made_while_another_deletes_it(path: str) -> tuple[httpx.Response, str]:
    """Create something; the reply is lost, and before it is made once more somebody else deletes it.
    What the creation is told, and the id of what was deleted."""
    harness, (body, id_name) = a_quiet_harness(), MADE[path]
    deleted = list[str]()
    async with running(harness) as service:

        async def delete() -> None:
            deleted.append((await service.public.get(path)).json()[id_name])
            assert (await service.public.delete(path)).status_code in (200, 202)

        async def before_the_first() -> None:
            harness.coordination.before_transact = delete

        harness.coordination.before_transact = before_the_first
        harness.coordination.faults = [Fault.LOST_APPLIED]
        return await service.public.put(path, json=body), deleted[0]


@pytest.mark.parametrize("path", MADE)
async def test_what_another_one_deleted_meanwhile_is_made_anew_under_a_new_id(path: str) -> None:
    answer, deleted = await made_while_another_deletes_it(path)
    assert answer.status_code == 201, answer.text
    assert answer.json()[MADE[path][1]] != deleted


@pytest.mark.parametrize("path", MADE)
async def test_nobody_says_that_nothing_was_made_when_the_store_is_away_at_the_look(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt is told that the name is taken; whose it is cannot be asked any more."""
    harness, (body, _) = a_quiet_harness(), MADE[path]
    coordination = harness.coordination

    async def away(_: str) -> bytes | None:
        raise CoordinationUnavailable("nobody answers")

    async def before_the_second() -> None:
        monkeypatch.setattr(coordination, "get", away)

    async def before_the_first() -> None:
        coordination.before_transact = before_the_second

    async with running(harness) as service:
        coordination.before_transact = before_the_first
        coordination.faults = [Fault.LOST_APPLIED]
        answer = await service.public.put(path, json=body)
        assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
        monkeypatch.undo()


BILLING = Reference("billing")


async def commit_as_stored(
    harness: ManifestHarness, meanwhile: Callable[[], Awaitable[None]] | None
) -> StoredOffset:
    """Commit an offset on condition that the stored one is as it was, and lose the reply; what `meanwhile`
    does happens before it is made once more."""
    commits, record = ConsumerCommits(harness.context), a_record()
    await harness.streams.create(record)
    stored, _ = await commits.commit(record, Commit(BILLING, 1))

    async def before_the_first() -> None:
        harness.coordination.before_transact = meanwhile

    harness.coordination.before_transact = before_the_first
    harness.coordination.faults = [Fault.LOST_APPLIED]
    return (await commits.commit(record, Commit(BILLING, 2, if_match=offset_etag(stored))))[0]


async def test_an_offset_that_was_stored_on_condition_is_found_after_a_lost_reply() -> None:
    """It was refused, since the stored offset had another tag by then: that of the first attempt."""
    assert (await commit_as_stored(ManifestHarness(), None)).next_offset == 2


async def test_nobody_says_that_nothing_was_stored_where_another_has_stored_since() -> None:
    harness = ManifestHarness()

    async def another() -> None:
        await ConsumerCommits(harness.context).commit(a_record(), Commit(BILLING, 3))

    with pytest.raises(Unavailable) as told:
        await commit_as_stored(harness, another)
    assert told.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("path", [STREAM, SUPER])
async def test_nobody_says_that_nothing_was_changed_where_another_has_changed_it_since(
    path: str,
) -> None:
    """The second attempt is refused, since the tag is another one: as it would be had nothing been done."""
    harness = ManifestHarness()
    async with running(harness) as service:
        made = await service.public.put(path, json={"partitions": 2} if path == SUPER else {})

        async def another() -> None:
            day = {"retention": {"max_age": "1d"}}
            answer = await service.public.patch(path, json=day, headers=PATCH)
            assert answer.status_code == 200

        async def before_the_first() -> None:
            harness.coordination.before_transact = another

        harness.coordination.before_transact = before_the_first
        harness.coordination.faults = [Fault.LOST_APPLIED]
        headers = {**PATCH, "if-match": made.headers["etag"]}
        answer = await service.public.patch(path, json=WEEK, headers=headers)
        assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")


async def test_without_its_guard_a_deleted_super_stream_comes_back_while_its_deletion_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the id of a super stream, never made twice", lambda _: None)
    answer, deleted = await made_while_another_deletes_it("/v1/super-streams/new")
    assert answer.json()["super_id"] == deleted
