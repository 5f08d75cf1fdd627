"""What a web page of a stranger can do to a server on the loopback, tried by a real browser.

The checks before this one never saw it: their clients were programs, which send no `Origin` and
call a server by its address. Here a browser opens a stranger's page, which has it send what needs
no permission (a foreign origin, no body), and another one whose name points to the loopback
afterwards (DNS rebinding). Beside the server that must not obey stands one whose operator named
the host and the origin, and the same pages get through to that: so the page does try, and the
rules are what holds. The rules by themselves, without a browser: test_runtime_foreign_pages.py.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from support.browser import Pages, browsing, chromium
from support.server import AllInOne

NAME: Final = "rebound.example"
UNASKED: Final = (
    "/v1/streams/orders/retention/evaluate",
    "/v1/streams/orders/manifest/verify",
    "/v1/admin/gc",
)
"""What changes something and needs no body: a browser sends it for any page, without asking."""

FOREIGN_PAGE: Final = """<!doctype html><title>a stranger's page</title><script type="module">
const servers = %s, paths = %s;
const asked = [];
for (const server of servers)
  for (const path of paths)
    asked.push(fetch(server + path, {method: "POST", mode: "no-cors"}).then(a => a.type, String));
await fetch("/report", {method: "POST", body: JSON.stringify(await Promise.all(asked))});
</script>"""
REBOUND_PAGE: Final = """<!doctype html><title>a page of the same origin</title><script type="module">
const tell = async (method, path, body) => {
  const headers = body ? {"Content-Type": "application/json"} : {};
  const answer = await fetch(path, {method, body, headers});
  return [answer.status, await answer.text()];
};
await fetch("/report", {method: "POST", body: JSON.stringify({
  list: await tell("GET", "/v1/streams"),
  create: await tell("PUT", "/v1/streams/made"),
  append: await tell("POST", "/v1/streams/orders/records", '{"records": [{"value": "x"}]}'),
})});
</script>"""


class Tried:
    """A server, and what the pages of strangers got from it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.audit = directory / f"{name}.audit"
        self.data_dir = directory / name
        self.rebound = Pages(REBOUND_PAGE)
        self.answers: dict[str, Any] = {}
        self.streams: list[str] = []
        self.next_offset = -1

    def server(self, settings: dict[str, str]) -> AllInOne:
        return AllInOne(self.data_dir, {"BOTTOMLESS_AUDIT_FILE": str(self.audit), **settings})

    def note(self, server: AllInOne) -> None:
        with server.client() as client:
            listed = client.get("/v1/streams").json()["items"]
            self.streams = sorted(stream["name"] for stream in listed)
            self.next_offset = client.get("/v1/streams/orders/offsets").json()["next_offset"]

    def unasked(self) -> list[tuple[str, int]]:
        """What was asked for beside the one stream that the test made itself, and its status."""
        entries = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return sorted(
            (entry["action"], entry["status"])
            for entry in entries
            if (entry["action"], entry["target"]) != ("stream.create", "orders")
        )


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tried]]:
    chromium()
    directory = tmp_path_factory.mktemp("pages")
    both = {name: Tried(directory, name) for name in ("guarded", "open")}
    stranger = Pages("")
    settings = {
        "guarded": {},
        "open": {
            "BOTTOMLESS_HOSTS": NAME,
            "BOTTOMLESS_CORS_ORIGINS": f"http://127.0.0.1:{stranger.port}",
        },
    }
    with ExitStack() as running:
        servers = {
            name: running.enter_context(each.server(settings[name])) for name, each in both.items()
        }
        for name, each in both.items():
            with servers[name].client() as client:
                assert client.put("/v1/streams/orders").status_code == 201
            each.rebound.behind = servers[name].url
            running.enter_context(each.rebound.serving())
        urls = [server.url for server in servers.values()]
        frames = [f"http://{NAME}:{each.rebound.port}/page" for each in both.values()]
        stranger.page = FOREIGN_PAGE % (json.dumps(urls), json.dumps(UNASKED)) + "".join(
            f'<iframe src="{frame}"></iframe>' for frame in frames
        )
        running.enter_context(stranger.serving())
        page = f"http://127.0.0.1:{stranger.port}/page"
        with browsing(page, directory / "profile", names=f"MAP {NAME} 127.0.0.1"):
            stranger.report()
            for each in both.values():
                each.answers = each.rebound.report()
        for name, each in both.items():
            each.note(servers[name])
        yield both


def test_a_page_of_a_stranger_changes_nothing_of_a_server_on_the_loopback(
    tried: dict[str, Tried],
) -> None:
    assert tried["guarded"].unasked() == []


def test_a_page_whose_name_points_to_the_loopback_reads_and_changes_nothing(
    tried: dict[str, Tried],
) -> None:
    answers = tried["guarded"].answers
    assert [status for status, _ in answers.values()] == [403, 403, 403]
    for _, text in answers.values():
        assert json.loads(text)["code"] == "host-not-allowed"
        assert "orders" not in text
    assert tried["guarded"].streams == ["orders"]
    assert tried["guarded"].next_offset == 0


def test_the_same_pages_do_get_through_where_host_and_origin_are_named(
    tried: dict[str, Tried],
) -> None:
    """So the two tests above can fail: without the rules this is what happens."""
    opened = tried["open"]
    assert {status for action, status in opened.unasked()} <= {201, 202}
    assert len(opened.unasked()) == len(UNASKED) + 1
    assert [status for status, _ in opened.answers.values()] == [200, 201, 200]
    assert opened.streams == ["made", "orders"]
    assert opened.next_offset == 1
