"""The queues service over HTTP: what is asked is done, and what is refused says where and why."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.rebuilding import rebuild
from support.waiting import eventually

from bottomless.errors import Denied
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes
from bottomless_server.queues.calls import PublishAnswer, PublishRequest
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.identity.credential_watch import CredentialWatch
from bottomless_server.stores.queue_homes import queue_node_key
from unit.queues.service_harness import (
    QUEUE,
    Installation,
    QueuesHarness,
    one_node,
    problem,
    receive_until,
    somebody,
    two_nodes,
)


async def test_a_queue_is_created_once_described_changed_and_deleted(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        made = await node.client.put(QUEUE, json={"visibility_ms": 5})
        assert (made.status_code, made.headers["location"]) == (201, QUEUE)
        again = await node.client.put(QUEUE, json={"visibility_ms": 5})
        assert (again.status_code, again.json()) == (200, made.json())
        other = problem(await node.client.put(QUEUE), 409, "queue-exists")
        assert other["differences"] == ["/visibility_ms"]

        shown = await node.client.get(QUEUE)
        assert shown.json() == made.json()
        same = {"if-none-match": shown.headers["etag"]}
        assert (await node.client.get(QUEUE, headers=same)).status_code == 304
        head = await node.client.head(QUEUE)
        assert (head.status_code, head.headers["etag"], head.content) == (
            200,
            shown.headers["etag"],
            b"",
        )

        patch = {"visibility_ms": 7}
        problem(await node.client.patch(QUEUE, json=patch), 428, "precondition-required")
        old = {"if-match": '"other"'}
        refused = problem(
            await node.client.patch(QUEUE, json=patch, headers=old), 412, "etag-mismatch"
        )
        mine = {"if-match": refused["current_etag"]}
        changed = await node.client.patch(QUEUE, json=patch, headers=mine)
        assert (changed.json()["visibility_ms"], changed.json()["config_version"]) == (7, 2)

        assert (await node.client.delete(QUEUE)).status_code == 204
        problem(await node.client.get(QUEUE), 404, "queue-not-found")


async def test_a_message_goes_to_one_consumer_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        published = (await node.publish("one", "two")).json()
        (first,) = await node.receive(limit=1)
        assert (first["value"], first["deliveries"]) == ("one", 1)
        assert first["message_id"] == published["messages"][0]["message_id"]
        (second,) = await node.receive()
        receipts = {"receipts": [first["receipt"]]}
        acked = await node.client.post(f"{QUEUE}/ack", json=receipts)
        assert acked.json() == {"acked": 1, "gone": [], "stale": []}
        again = await node.client.post(f"{QUEUE}/ack", json=receipts)
        assert again.json() == {"acked": 0, "gone": receipts["receipts"], "stale": []}
        mine = {"receipts": [second["receipt"]]}
        assert (await node.client.post(f"{QUEUE}/extend", json=mine)).json()["extended"] == 1
        assert (await node.client.post(f"{QUEUE}/nack", json=mine)).json()["returned"] == 1
        (back,) = await node.receive()
        assert (back["value"], back["deliveries"]) == ("two", 2)
        stale = await node.client.post(f"{QUEUE}/ack", json=mine)
        assert stale.json()["stale"] == mine["receipts"]


async def test_a_raw_message_is_its_body_in_both_directions(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        raw = {"content-type": "application/octet-stream", "message-header-kind": "scan"}
        await node.client.post(f"{QUEUE}/messages", content=b"\0\xff", headers=raw)
        wanted = {"accept": "application/octet-stream"}
        taken = await node.client.post(f"{QUEUE}/receive", headers=wanted)
        assert (taken.status_code, taken.content) == (200, b"\0\xff")
        assert taken.headers["message-header-kind"] == "scan"
        receipt = taken.headers["message-receipt"]
        acked = await node.client.post(f"{QUEUE}/ack", json={"receipts": [receipt]})
        assert acked.json()["acked"] == 1
        none = await node.client.post(f"{QUEUE}/receive", headers=wanted)
        assert (none.status_code, none.content) == (204, b"")


async def test_a_repeat_of_a_key_is_told_and_another_body_is_refused(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        first = await node.publish("a", **{"idempotency-key": "k"})
        again = await node.publish("a", **{"idempotency-key": "k"})
        assert again.headers["idempotent-replayed"] == "true"
        assert (
            again.json()["messages"][0]["message_id"] == (first.json()["messages"][0]["message_id"])
        )
        other = await node.publish("b", **{"idempotency-key": "k"})
        problem(other, 422, "idempotency-mismatch")
        raw = {"content-type": "application/octet-stream", "idempotency-key": "raw"}
        path = f"{QUEUE}/messages"
        await node.client.post(path, content=b"x", headers={**raw, "message-priority": "1"})
        told_apart = await node.client.post(
            path, content=b"x", headers={**raw, "message-priority": "2"}
        )
        problem(told_apart, 422, "idempotency-mismatch")


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("POST", "/messages", {"content": b"{"}, 400, "malformed-json"),
        ("POST", "/messages", {"json": {"messages": [{}]}}, 422, "validation-failed"),
        ("POST", "/messages?x=1", {"json": {}}, 400, "unknown-parameter"),
        ("POST", "/receive", {"json": {"limit": 0}}, 422, "validation-failed"),
        ("POST", "/receive", {"headers": {"accept": "text/html"}}, 406, "not-acceptable"),
        ("POST", "/ack", {"json": {}}, 422, "validation-failed"),
        ("POST", "/ack", {"content": b"a=b"}, 415, "unsupported-media-type"),
        ("GET", "/messages?limit=101", {}, 400, "bad-parameter"),
        ("DELETE", "/messages", {}, 405, "method-not-allowed"),
        ("GET", "/nothing", {}, 404, "not-found"),
        ("POST", "/redrive", {"json": {"to": "jobs"}}, 400, "bad-parameter"),
        ("POST", "/purge", {"json": {"state": "x"}}, 422, "validation-failed"),
    ],
)
async def test_what_is_wrong_is_refused_in_the_one_shape(
    tmp_path: Path, method: str, path: str, sent: dict[str, object], status: int, code: str
) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        if "content" in sent and "a=b" not in str(sent["content"]):
            sent = {**sent, "headers": {"content-type": "application/json"}}
        problem(await node.client.request(method, QUEUE + path, **sent), status, code)  # type: ignore[arg-type]


async def test_nothing_is_where_a_tenant_has_no_home(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        listed = (await node.client.get("/v1/queues")).json()
        assert listed == {"items": [], "next_page_token": None}
        problem(await node.publish("a"), 404, "queue-not-found")
        body = {"queues": ["jobs"], "messages": [{"value": "a"}]}
        problem(await node.client.post("/v1/publish", json=body), 404, "queue-not-found")
        assert not any("queue-homes" in path for _, path, _ in node.peer.asked)


async def test_lists_come_in_pages_whose_tokens_are_of_one_list(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        for name in ("a-1", "a-2", "b"):
            await node.create(name)
        page = (await node.client.get("/v1/queues?prefix=a&limit=1")).json()
        assert [item["name"] for item in page["items"]] == ["a-1"]
        token = page["next_page_token"]
        rest = (await node.client.get(f"/v1/queues?prefix=a&limit=1&page_token={token}")).json()
        assert [item["name"] for item in rest["items"]] == ["a-2"]
        assert rest["next_page_token"] is None
        problem(await node.client.get(f"/v1/queues?page_token={token}"), 400, "bad-parameter")


# Waiting


async def test_a_receive_that_waits_gets_what_is_published(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        waiting = asyncio.create_task(node.receive(max_wait_ms=30_000))
        await until_waiting(node)
        await node.publish("a")
        assert [message["value"] for message in await waiting] == ["a"]


async def test_a_drain_answers_who_waits_with_nothing_and_refuses_who_comes(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        waiting = asyncio.create_task(node.receive(max_wait_ms=30_000))
        await until_waiting(node)
        await node.service.drain()
        assert await waiting == []
        problem(await node.publish("a"), 503, "draining")


async def test_a_credential_that_ended_while_it_waited_gets_nothing_and_others_do(
    tmp_path: Path,
) -> None:
    async def ended() -> float | None:
        raise Denied("it is at an end")

    async with one_node(tmp_path) as node:
        await node.create()
        node.watch = CredentialWatch(ended, 10)
        asked = {"max_wait_ms": 30_000}
        waiting = asyncio.create_task(node.client.post(f"{QUEUE}/receive", json=asked))
        await until_waiting(node)
        node.watch = None
        await node.publish("a")
        problem(await waiting, 403, "forbidden")
        (message,) = await node.receive(max_wait_ms=30_000)
        assert message["value"] == "a"
        assert node.service.counts.given_back == 1


async def until_waiting(node: QueuesHarness) -> None:
    engine = node.service.place.there()
    await eventually(lambda: engine.figures().waiting_receives == 1)


# Streams that a configuration names


async def test_a_stream_that_is_not_there_is_told_when_a_queue_names_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        both = {"dead_letter": {"stream": "dead"}, "archive": {"stream": "done"}}
        for asked in (
            node.client.put("/v1/queues/new", json=both),
            node.client.patch(QUEUE, json=both, headers={"if-match": "*"}),
        ):
            refused = problem(await asked, 422, "validation-failed")
            told = [(one["code"], one["pointer"]) for one in refused["errors"]]
            assert told == [
                ("stream-not-found", "/dead_letter/stream"),
                ("stream-not-found", "/archive/stream"),
            ]
        assert (await node.client.get("/v1/queues/new")).status_code == 404
        await node.installation.create_stream("dead")
        await node.create("new", dead_letter={"stream": "dead"})
        refused = problem(
            await node.client.put("/v1/queues/newer", json=both), 422, "validation-failed"
        )
        assert [one["pointer"] for one in refused["errors"]] == ["/archive/stream"]


async def test_a_stream_that_was_deleted_since_refuses_no_repeat_and_no_other_change(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        await node.installation.create_stream("done")
        named: dict[str, Any] = {"archive": {"stream": "done"}}
        await node.create(**named)
        await node.installation.delete_stream("done")
        assert (await node.client.put(QUEUE, json=named)).status_code == 200
        problem(await node.client.put(QUEUE, json={**named, "delay_ms": 1}), 409, "queue-exists")
        headers = {"if-match": "*"}
        for change in ({"delay_ms": 5, **named}, {"archive": None}):
            answer = await node.client.patch(QUEUE, json=change, headers=headers)
            assert answer.status_code == 200, answer.text
        problem(
            await node.client.patch(QUEUE, json=named, headers=headers), 422, "validation-failed"
        )


async def test_a_stream_is_hidden_from_who_may_not_append_to_it_as_if_it_were_not_there(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        await node.installation.create_stream("there")
        headers = {"if-match": "*"}
        answers = []
        for scopes, stream in ((["append:nothing"], "there"), (["append"], "nothing")):
            node.principal = somebody("queue-manage:jobs", *scopes)
            body = {"archive": {"stream": stream}}
            answer = await node.client.patch(QUEUE, json=body, headers=headers)
            refused = problem(answer, 422, "validation-failed")
            answers.append({**refused, "request_id": ""})
        assert answers[0] == answers[1]
        node.principal = somebody("queue-manage:jobs", "describe:there")
        denied = await node.client.patch(
            QUEUE, json={"archive": {"stream": "there"}}, headers=headers
        )
        assert problem(denied, 403, "forbidden")["errors"][0]["pointer"] == "/archive/stream"


# Who may


async def test_what_a_body_names_needs_a_credential_for_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        for name in ("jobs", "dead"):
            await node.create(name)
        node.principal = somebody("queue-publish:jobs", "queue-manage:jobs", "append:orders")
        fan_out = {"queues": ["jobs", "dead"], "messages": [{"value": "a"}]}
        hidden = problem(
            await node.client.post("/v1/publish", json=fan_out), 404, "queue-not-found"
        )
        assert hidden["queue"] == "dead"
        match = {"if-match": "*"}
        for config, status, code in (
            ({"dead_letter": {"queue": "dead"}}, 404, "queue-not-found"),
            ({"dead_letter": {"stream": "other"}}, 422, "validation-failed"),
            ({"archive": {"stream": "other"}}, 422, "validation-failed"),
        ):
            problem(await node.client.patch(QUEUE, json=config, headers=match), status, code)
            problem(await node.client.put("/v1/queues/jobs-2", json=config), status, code)
        to = {"to": "dead"}
        problem(await node.client.post(f"{QUEUE}/redrive", json=to), 404, "queue-not-found")
        await node.installation.create_stream("orders")
        good = {"archive": {"stream": "orders"}}
        assert (await node.client.patch(QUEUE, json=good, headers=match)).status_code == 200

        node.principal = somebody("queue-publish:jobs", "queue-describe:dead")
        problem(await node.client.post("/v1/publish", json=fan_out), 403, "forbidden")
        node.principal = somebody("queue-publish")
        assert (await node.client.post("/v1/publish", json=fan_out)).status_code == 200


async def test_a_list_has_what_the_credential_may_see_and_tenants_see_nothing_of_others(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        for name in ("a", "b"):
            await node.create(name)
        node.principal = somebody("queue-describe:a", "describe:b")
        listed = (await node.client.get("/v1/queues")).json()
        assert [item["name"] for item in listed["items"]] == ["a"]
        node.principal = somebody("*", tenant="acme")
        assert (await node.client.get("/v1/queues")).json()["items"] == []
        problem(await node.client.get("/v1/queues/a"), 404, "queue-not-found")


# Homes


async def test_any_node_takes_requests_and_passes_them_on_to_the_home(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        assert (await other.publish("a")).status_code == 200
        (message,) = await other.receive()
        assert message["value"] == "a"
        receipts = {"receipts": [message["receipt"]]}
        assert (await other.client.post(f"{QUEUE}/ack", json=receipts)).json()["acked"] == 1
        await other.create("second")
        listed = (await other.client.get("/v1/queues")).json()
        assert [item["name"] for item in listed["items"]] == ["jobs", "second"]
        assert other.service.counts.forwarded == 5
        # It is asked where the credential was shown.
        other.principal = somebody("queue-describe:second", "queue-publish:jobs")
        listed = (await other.client.get("/v1/queues")).json()
        assert [item["name"] for item in listed["items"]] == ["second"]
        body = {"queues": ["jobs", "second"], "messages": [{"value": "a"}]}
        problem(await other.client.post("/v1/publish", json=body), 403, "forbidden")


async def test_headers_of_a_forwarded_request_mean_nothing_on_the_public_side(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        for name in ("jobs", "dead"):
            await node.create(name)
        node.principal = somebody("queue-publish:jobs")
        made_up = {"bottomless-forwarded-tenant": "default", "bottomless-forwarded-actor": "x"}
        body = {"queues": ["dead"], "messages": [{"value": "a"}]}
        answer = await node.client.post("/v1/publish", json=body, headers=made_up)
        problem(answer, 404, "queue-not-found")


async def test_after_a_takeover_the_old_home_passes_on_and_the_new_one_has_none_of_it(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as (old, new):
        await old.create()
        await old.publish("a")
        home = old.service.directory.node_id
        asked = {"tenant": "default", "accept_loss": True, "expect_home": home}
        path = "/v1/admin/queues/takeover"
        refused = problem(await new.client.post(path, json=asked), 409, "home-live")
        assert refused["home"] == home
        await old.service.lease.stop()

        taken = await new.client.post(path, json=asked)

        mine = new.service.directory.node_id
        assert taken.json() == {"tenant": "default", "home": mine, "term": 2}
        assert (await new.client.post(path, json=asked)).json() == taken.json()
        problem(await new.publish("b"), 404, "queue-not-found")
        await new.create()
        assert await new.receive() == []
        await old.service.lease.start()
        assert (await old.publish("c")).status_code == 200
        assert [message["value"] for message in await new.receive()] == ["c"]


async def test_a_node_whose_lease_ran_out_answers_nothing_and_goes_on_when_it_has_it_again(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        node.installation.stores.coordination.write(
            Changes({queue_node_key(node.service.directory.node_id): None})
        )
        node.installation.clocks.advance(60_000)
        problem(await node.publish("a"), 503, "not-owner")
        await node.service.lease.renew()
        asked = len(node.peer.asked)
        assert (await node.publish("a")).status_code == 200
        # Start and home were confirmed once, in the new term of the lease.
        confirmed = [path.split("/")[3] for _, path, _ in node.peer.asked[asked:]]
        assert confirmed == ["queue-starts", "queue-homes"]
        await node.publish("b")
        assert len(node.peer.asked) == asked + 2


async def published_as_the_lease_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The status of a publish that is on the disk when the node may be the home no more."""
    async with one_node(tmp_path) as node:
        await node.create()
        engine = node.service.place.there()
        publish = engine.publish

        async def late(request: PublishRequest) -> PublishAnswer:
            answer = await publish(request)
            node.installation.clocks.advance(60_000)
            return answer

        monkeypatch.setattr(engine, "publish", late)
        answer = await node.publish("a")
        if answer.status_code != 200:
            assert problem(answer, 503, "not-owner")["outcome"] == "unknown"
        return answer.status_code


async def test_what_is_on_the_disk_of_a_home_that_may_be_deposed_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await published_as_the_lease_runs_out(tmp_path, monkeypatch) == 503


async def test_without_the_guard_a_message_is_confirmed_that_the_next_home_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the home of a tenant's queues, before an answer", lambda *_: None)
    assert await published_as_the_lease_runs_out(tmp_path, monkeypatch) == 200


async def test_without_the_confirmation_a_deposed_home_would_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path) as (old, new):
        await old.create()
        await old.publish("a")
        await old.service.lease.stop()
        asked = {
            "tenant": "default",
            "accept_loss": True,
            "expect_home": old.service.directory.node_id,
        }
        await new.client.post("/v1/admin/queues/takeover", json=asked)
        await old.service.lease.start()
        guard = "the home of a tenant's queues, confirmed in each term of the lease"
        remove(monkeypatch, guard, lambda *_: True)
        assert [message["value"] for message in await old.receive()] == ["a"]


async def test_after_a_loss_of_coordination_and_a_rebuild_the_home_serves_what_it_has(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        await home.publish("a")
        stores = home.installation.stores
        stores.coordination.lose()
        await rebuild(stores)
        for node in (home, other):
            await node.service.lease.renew()
        assert [message["value"] for message in await home.receive()] == ["a"]
        home.service.homes.forget_owner("")
        assert (await other.publish("b")).status_code == 200
        assert [message["value"] for message in await home.receive()] == ["b"]


async def test_a_node_that_starts_while_coordination_is_empty_does_not_say_that_there_is_no_queue(
    tmp_path: Path,
) -> None:
    """It knew of no generation then, so that it took what was lost for what never was: seed 1 of
    `./dev sim --queues`."""
    installation = await Installation().start()
    first = await installation.node(tmp_path / "queues").start()
    await first.create()
    await first.aclose()
    installation.stores.coordination.lose()
    second = await installation.node(tmp_path / "queues").start()
    for answer in (await second.client.get(QUEUE), await second.publish("a")):
        assert problem(answer, 503, "coordination-unavailable")["outcome"] == "none"
    await second.aclose()
    await installation.manifest.stop()


async def test_a_disk_that_is_used_by_another_process_is_not_opened(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        second = node.installation.node(tmp_path / "queues")
        with pytest.raises(CannotStart, match="another queues process"):
            await second.start()


async def test_the_store_of_a_node_is_described_and_compacted(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        await node.publish("a")
        store = (await node.client.get("/v1/admin/queue-store")).json()
        assert NodeId(store["node_id"]) == node.service.directory.node_id
        assert (store["files"], store["outgoing"]) == ({"open": 1}, [])
        compacted = await node.client.post("/v1/admin/queue-store/compact")
        assert compacted.json() == {"scheduled": 0}


async def test_a_request_that_is_cancelled_when_its_messages_are_there_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        await node.publish("a")
        engine = node.service.place.there()
        take = engine.receive

        async def taken(*args: Any, **how: Any) -> Any:
            found = await take(*args, **how)
            this = asyncio.current_task()
            assert this is not None
            # After whoever waits for it was woken, and before it goes on.
            this.add_done_callback(lambda _: asking.cancel())
            return found

        monkeypatch.setattr(engine, "receive", taken)
        asking = asyncio.create_task(node.receive(max_wait_ms=30_000))
        with pytest.raises(asyncio.CancelledError):
            await asking
        monkeypatch.undo()
        (message,) = await node.receive(max_wait_ms=30_000)
        assert (message["value"], message["deliveries"]) == ("a", 1)
        assert node.service.counts.given_back == 1


async def test_who_leaves_while_its_credential_is_checked_takes_nothing(tmp_path: Path) -> None:
    checked, may_go_on, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly() -> float | None:
        checked.set()
        await may_go_on.wait()
        return None

    async with one_node(tmp_path) as node:
        await node.create()
        await node.publish("a")
        node.watch = CredentialWatch(slowly, 10)
        asking = asyncio.create_task(receive_until(node, left))
        await checked.wait()
        left.set()
        node.watch = None
        async with asyncio.timeout(20):
            (message,) = await node.receive(max_wait_ms=30_000)
        assert (message["value"], message["deliveries"]) == ("a", 1)
        may_go_on.set()
        assert await asking == []


async def test_a_request_that_is_cancelled_when_it_has_looked_at_its_messages_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were its own, and only the watch over its client was still to end."""
    async with one_node(tmp_path) as node:
        await node.create()
        await node.publish("a")
        require_still = TenantHomes.require_still

        def cancelled(homes: TenantHomes, tenant: str) -> None:
            require_still(homes, tenant)
            asking.cancel()

        monkeypatch.setattr(TenantHomes, "require_still", cancelled)
        asking = asyncio.create_task(node.receive(max_wait_ms=30_000))
        with pytest.raises(asyncio.CancelledError):
            await asking
        monkeypatch.undo()
        (message,) = await node.receive(max_wait_ms=30_000)
        assert (message["value"], message["deliveries"]) == ("a", 1)
        assert node.service.counts.given_back == 1
