"""What `tiers show` says of each drive adds up to the bytes that lie there, whatever was moved."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine
from support.contract import Stream, new_stream
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    **PATIENT,
    "BOTTOMLESS_MANIFEST_TIER_INTERVAL_MS": "86400000",
    "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_FANOUT": "3",
}
FRAGMENTS = 7
"""Enough for a group on the way, a part of which moves."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    named = {"shelf": {"number": 1, "url": (tmp_path / "shelf").as_uri()}}
    settings = {**SETTINGS, "BOTTOMLESS_DRIVES": json.dumps(named)}
    with AllInOne(tmp_path / "data", settings) as running:
        yield running


def stored(root: Path, stream_id: str) -> tuple[int, int]:
    """How many fragments of a stream lie below a directory, and their bytes."""
    sizes = []
    for path in root.rglob("*.fragment"):
        # A source may go between the listing and the look at it.
        with contextlib.suppress(FileNotFoundError):
            sizes += [path.stat().st_size] if f"/{stream_id}/" in str(path) else []
    return len(sizes), sum(sizes)


def test_what_is_shown_adds_up_to_what_the_stores_hold(server: AllInOne, tmp_path: Path) -> None:
    cli = CommandLine(server.url, tmp_path)
    cli.ok("drives", "add", "shelf")
    with server.client() as client:
        stream = new_stream(client, {"fragment": {"max_age_ms": 100}})
        for number in range(FRAGMENTS):
            stream.append(*(f"{number}.{one}" for one in range(number + 1)))
            stream.wait_uploaded()
        before = stream.page()["records"]
        stream_id = cli.json("describe", stream.name)["stream_id"]
        roots = {"default": server.objects, "shelf": tmp_path / "shelf"}

        def agrees() -> dict[str, Any] | None:
            """What is shown, once that is what lies there: sources are deleted a moment later."""
            told: dict[str, Any] = cli.json("tiers", "show", stream.name)
            shown = {one["drive"]: (one["fragments"], one["bytes"]) for one in told["drives"]}
            found = {name: stored(root, stream_id) for name, root in roots.items()}
            assert set(shown) <= set(found)
            same = all(shown.get(name, (0, 0)) == found[name] for name in found)
            return told if same else None

        assert until(agrees, what="what lies on one drive")["drives"][0]["fragments"] == FRAGMENTS
        cli.ok("tiers", "move", stream.name, "1", "10", "shelf", "--wait")
        # Offsets 1 to 9 have the second to the fourth fragment, of two to four records.
        moved = until(agrees, what="what was moved by hand")
        assert [one["records"] for one in moved["drives"]] == [19, 9]

        cli.ok("update", stream.name, "--tiers", "default:bytes=1,shelf")
        cli.ok("tiers", "apply", stream.name, "--wait")
        told = until(agrees, what="what the policy has moved")
        assert [(one["tier"], one["records"]) for one in told["drives"]] == [(0, 7), (1, 21)]
        described = cli.json("describe", stream.name)
        assert sum(one["bytes"] for one in told["drives"]) == described["size_bytes"]
        assert "####" in cli.ok("describe", stream.name).splitlines()[-1]

        cli.ok("tiers", "promote", stream.name, "0", "3", "--wait")
        back = until(agrees, what="what was promoted")
        assert [one["records"] for one in back["drives"]] == [10, 18]
        assert Stream(client, stream.name).page()["records"] == before
