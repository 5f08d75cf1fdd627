"""Tiers over HTTP: what lies where, what the policy wants, and moves that somebody asks for."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.asgi import client_of
from support.drives import register
from support.manifest import STREAM
from support.moving import COLD, HOT, Moving, a_moving_stream

from bottomless.model.config import parse_stored_config
from bottomless.model.limits import MOVE_COUNT_MAX, PROMOTION_COUNT_MAX
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Promotion, parse_copy
from bottomless_server.manifest.app import ManifestService

PATH = "/v1/streams/orders"


class Scene:
    """A stream over two drives, `default` and `d7`, and a client of the service that has it."""

    def __init__(self, moving: Moving, http: httpx.AsyncClient) -> None:
        self.moving = moving
        self.http = http

    async def tiers(self) -> dict[str, Any]:
        answer = await self.http.get(f"{PATH}/tiers")
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def post(self, what: str, body: Any = None) -> httpx.Response:
        return await self.http.post(f"{PATH}/{what}", json={} if body is None else body)

    async def move(self, first: int, end: int, drive: str) -> httpx.Response:
        body = {"from_offset": first, "to_offset": end, "drive": drive}
        return await self.post("moves", body)

    async def change(self, **changes: Any) -> None:
        def work(record: StreamRecord) -> StreamRecord:
            return replace(record, **changes)

        await self.moving.committer.change(work)

    async def have_policy(self, fragments: int) -> None:
        """Give the stream room for so many fragments on drive 0."""
        (first, *_) = await self.moving.leaves()
        size = fragments * first.size + first.size // 2
        tiers = [{"drive": "default", "max_bytes": size}, {"drive": f"d{COLD}"}]
        await self.change(config=parse_stored_config({"tiers": tiers}))

    async def carry_out(self, moves: list[dict[str, Any]]) -> None:
        """Copy, and have the copies named, as an uploader does."""
        await self.moving.reopen()
        for move in moves:
            await self.moving.copy(parse_copy(move["move"]))
            await self.moving.finish(parse_copy(move["move"]))

    async def drives(self) -> list[int]:
        return [info.drive for info in await self.moving.leaves()]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    service = ManifestService(moving.harness.context)
    async with client_of(service.public) as client:
        yield Scene(moving, client)
    await service.stop()


async def test_what_lies_where_adds_up_to_the_stream(scene: Scene) -> None:
    await scene.moving.move(0, 20)
    leaves = await scene.moving.leaves()

    told = await scene.tiers()

    assert [one["drive"] for one in told["drives"]] == ["default", f"d{COLD}"]
    for one in told["drives"]:
        here = [info for info in leaves if info.drive == one["number"]]
        assert one["fragments"] == len(here)
        assert one["bytes"] == sum(info.size for info in here)
        assert one["records"] == sum(info.record_count for info in here)
        assert one["first_timestamp"] == "1970-01-01T00:00:01.000Z"
        assert one["tier"] is None
    described = (await scene.http.get(PATH)).json()
    assert sum(one["bytes"] for one in told["drives"]) == described["size_bytes"]
    assert told["several"] == {"fragments": 0, "bytes": 0, "records": 0}


async def test_drives_of_tiers_come_first_also_where_nothing_lies(scene: Scene) -> None:
    await scene.change(config=parse_stored_config({"tiers": [{"drive": f"d{COLD}"}]}))

    told = await scene.tiers()

    assert told["tiers"][0]["drive"] == f"d{COLD}"
    assert [(one["drive"], one["tier"]) for one in told["drives"]] == [
        (f"d{COLD}", 0),
        ("default", None),
    ]
    assert told["drives"][0]["fragments"] == 0
    assert told["drives"][0]["first_timestamp"] is None


async def test_a_preview_shows_what_an_evaluation_enters(scene: Scene) -> None:
    await scene.have_policy(2)

    preview = (await scene.post("tiers/preview")).json()
    before = (await scene.tiers())["moves"]
    entered = await scene.post("tiers/evaluate")

    assert before == []
    assert entered.status_code == 202
    shown = entered.json()["moves"]
    names = ("from_offset", "to_offset", "from_drive", "to_drive")
    assert [[one[name] for name in names] for one in shown] == [
        [one[name] for name in names] for one in preview["moves"]
    ]
    (waiting,) = preview["waiting"]
    assert (waiting["from_drive"], waiting["to_drive"]) == ("default", f"d{COLD}")
    assert waiting["fragments"] == 4
    assert (await scene.tiers())["moves"] == shown
    assert not shown[0]["taken_up"]
    await scene.carry_out(shown)
    assert (await scene.drives()).count(COLD) == sum(one["fragments"] for one in preview["moves"])


async def test_without_a_policy_nothing_is_wanted(scene: Scene) -> None:
    assert (await scene.post("tiers/preview")).json() == {
        "moves": [],
        "waiting": [],
        "damaged": [],
    }
    assert (await scene.post("tiers/evaluate")).json() == {"moves": []}
    refused = await scene.post("tiers/promote", {"from_offset": 0, "to_offset": 10})
    assert refused.status_code == 422
    assert refused.json()["code"] == "validation-failed"


async def test_what_is_moved_by_hand_is_what_lies_whole_in_the_range(scene: Scene) -> None:
    entered = await scene.move(5, 45, f"d{COLD}")

    assert entered.status_code == 202
    told = entered.json()
    assert told["left"] == {"fragments": 0, "bytes": 0, "records": 0}
    assert (told["moves"][0]["from_offset"], told["moves"][-1]["to_offset"]) == (10, 40)
    await scene.carry_out(told["moves"])
    assert await scene.drives() == [HOT, COLD, COLD, COLD, HOT, HOT]
    again = await scene.move(5, 45, f"d{COLD}")
    assert again.json() == {"moves": [], "left": {"fragments": 0, "bytes": 0, "records": 0}}


async def test_a_move_is_refused_for_what_is_wrong_with_it(scene: Scene) -> None:
    beyond = await scene.move(0, 61, f"d{COLD}")
    assert (beyond.status_code, beyond.json()["code"]) == (422, "offset-beyond-end")
    assert beyond.json()["published_next"] == 60
    unknown = await scene.move(0, 10, "nowhere")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "drive-unknown")
    assert "nowhere" not in unknown.text
    reversed_ = await scene.move(10, 10, f"d{COLD}")
    assert (reversed_.status_code, reversed_.json()["code"]) == (422, "validation-failed")
    assert (await scene.tiers())["moves"] == []


async def test_a_drive_that_is_not_registered_gets_nothing() -> None:
    moving = await a_moving_stream(1)
    service = ManifestService(moving.harness.context)
    async with client_of(service.public) as client:
        refused = await Scene(moving, client).move(0, 10, f"d{COLD}")
    await service.stop()

    assert refused.json()["code"] == "drive-unknown"
    assert (await moving.harness.record()).moves == ()


async def test_beyond_the_moves_that_there_may_be_the_answer_says_what_is_left(
    scene: Scene,
) -> None:
    for at in range(MOVE_COUNT_MAX - 1):
        await scene.move(10 * at, 10 * at + 10, f"d{COLD}")
    # Groups of the harness have two fragments each, so two moves are wanted and one has room.
    entered = (await scene.move(30, 60, f"d{COLD}")).json()

    assert len(entered["moves"]) == 1
    assert entered["left"]["fragments"] == 2
    refused = await scene.move(40, 60, f"d{COLD}")
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert len((await scene.tiers())["moves"]) == MOVE_COUNT_MAX


async def test_a_move_that_is_given_up_leaves_no_copy(scene: Scene) -> None:
    (move,) = (await scene.move(0, 10, f"d{COLD}")).json()["moves"]
    await scene.moving.reopen()
    await scene.moving.copy(parse_copy(move["move"]))
    assert (await scene.tiers())["moves"][0]["taken_up"]

    gone = await scene.http.delete(f"{PATH}/moves/{move['move']}")

    assert gone.status_code == 204
    assert (await scene.tiers())["moves"] == []
    await scene.moving.after_the_grace()
    await scene.moving.check_nothing_else_is_there()
    for number in (move["move"], "0" * 16, "no-number"):
        again = await scene.http.delete(f"{PATH}/moves/{number}")
        assert (again.status_code, again.json()["code"]) == (404, "not-found")


async def test_what_was_promoted_is_left_alone_until_its_time_is_over(scene: Scene) -> None:
    await scene.moving.move(0, 40)
    await scene.have_policy(2)

    entered = await scene.post("tiers/promote", {"from_offset": 0, "to_offset": 20})

    assert entered.status_code == 202
    moves = entered.json()["moves"]
    assert {(one["from_drive"], one["to_drive"]) for one in moves} == {(f"d{COLD}", "default")}
    await scene.carry_out(moves)
    assert await scene.drives() == [HOT, HOT, COLD, COLD, HOT, HOT]
    assert [
        (one["from_offset"], one["to_offset"]) for one in (await scene.tiers())["promoted"]
    ] == [(0, 20)]
    assert (await scene.post("tiers/evaluate")).json() == {"moves": []}

    keep = scene.moving.harness.context.settings.manifest_promote_keep_ms
    scene.moving.harness.clock.now += keep
    assert (await scene.tiers())["promoted"] == []
    await scene.carry_out((await scene.post("tiers/evaluate")).json()["moves"])
    assert await scene.drives() == [COLD] * 4 + [HOT] * 2


async def test_no_more_is_promoted_than_the_record_has_room_for(scene: Scene) -> None:
    await scene.moving.move(0, 40)
    await scene.have_policy(2)
    until = scene.moving.harness.clock.now + 1_000
    full = tuple(Promotion(100 * at, 100 * at + 1, until) for at in range(1, 17))
    assert len(full) == PROMOTION_COUNT_MAX
    await scene.change(promoted=full)

    refused = await scene.post("tiers/promote", {"from_offset": 0, "to_offset": 10})

    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert (await scene.moving.harness.streams.load(STREAM)).moves == ()


async def test_entries_of_the_manifest_say_their_drive_and_tier(scene: Scene) -> None:
    await scene.have_policy(6)
    await scene.moving.reopen()
    await scene.moving.move(0, 10)

    shown = (await scene.http.get(f"{PATH}/manifest", params={"depth": 8})).json()["entries"]

    def leaves(entries: list[dict[str, Any]]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for one in entries:
            inside = leaves(one["entries"]) if one["kind"] == "group" else []
            found += inside or [(one["drive"], one["tier"])]
        return found

    assert leaves(shown) == [(f"d{COLD}", 1)] + [("default", 0)] * 5
    assert (shown[0]["drive"], shown[0]["tier"]) == (None, None)
