"""`./dev docs`: the pages of this repository as a site, which no other host has to be there for."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from inspect import getmembers
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.devtools import a_tab

import bottomless
from bottomless import client

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "docs/site/build.py"
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("s*/*.md"), *ROOT.glob("docs/**/*.md")])
LOADED: Final = {"script", "link", "img", "iframe", "source", "video", "audio", "object", "embed"}
OF_STYLES: Final = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")
OF_SCRIPTS: Final = re.compile(
    r"""(?:fetch|import|importScripts|open|Worker|sendBeacon)\s*\([^)]*["'`](?:https?:)?//"""
    r"""|\.(?:src|href)\s*=\s*["'`](?:https?:)?//"""
)


WRONG: Final = """# Start

[no page](docs/none.md), [no anchor](docs/other.md#none), [none here](#none-here), [a folder](docs),
[right](docs/other.md#there)
"""
SOME: Final = (
    "docs/site/python-api.md",
    "docs/decisions/0020-a-takeover-fences-before-it-puts-a-root.md",
)
"""Pages of a small site: what only the reference has, and something to search for."""


class Built(NamedTuple):
    folder: Path
    told: str
    """What was said of pages, by where they lie in the tree."""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A tree of a few pages, some links of which lead nowhere: of those that the navigation names it
    has README and the reference."""
    source = tmp_path_factory.mktemp("pages") / "source"
    (source / "docs").mkdir(parents=True)
    (source / "README.md").write_text(WRONG)
    (source / "docs/other.md").write_text("# Other\n\n## There\n")
    for page in SOME:
        (source / page).parent.mkdir(parents=True)
        (source / page).write_text((ROOT / page).read_text())
    folder = source.parent / "built"
    built = built_to(folder, source)
    assert built.returncode != 0
    return Built(folder, built.stderr)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "built"
    built = built_to(folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(params=["some pages", "all pages"])
def site(request: pytest.FixtureRequest) -> Path:
    if request.param == "all pages":
        folder: Path = request.getfixturevalue("whole")
        return folder
    some: Built = request.getfixturevalue("small")
    return some.folder


def built_to(folder: Path, *source: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILD), str(folder), *map(str, source)]
    plain = {**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}  # Sphinx speaks many languages
    plain.pop("FORCE_COLOR", None)
    return subprocess.run(command, env=plain, capture_output=True, text=True, check=False)


class _Tags(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def tags_of(page: Path) -> Iterator[tuple[str, dict[str, str]]]:
    yield from _Tags(page).found


def test_every_page_of_the_repository_stands_in_one_group_of_the_navigation() -> None:
    groups: dict[str, list[str]] = runpy.run_path(str(BUILD.with_name("conf.py")))["GROUPS"]
    named = [page for pages in groups.values() for page in pages]
    wanted = [str(page.relative_to(ROOT).with_suffix("")) for page in PAGES]
    below = [page for page in wanted if re.match("docs/decisions/0", page)]
    assert len(below) > 40
    found = [re.sub(r".* <(.+)>", r"\1", page) for page in named]
    assert sorted([*found, *below, "README"]) == sorted(wanted)


def test_every_page_of_the_repository_is_reached_from_the_navigation_of_the_front_page(
    whole: Path,
) -> None:
    links = {
        attributes["href"].partition("#")[0]
        for tag, attributes in tags_of(whole / "index.html")
        if tag == "a" and "internal" in attributes.get("class", "")
    }
    wanted = {str(page.relative_to(ROOT).with_suffix(".html")) for page in PAGES}
    assert len(wanted) > 40
    assert wanted - {"README.html"} <= links
    assert [page for page in wanted if not (whole / page).is_file()] == []


def test_no_page_has_another_host_to_load_from(site: Path) -> None:
    asked = [
        (page.name, tag, address)
        for page in site.rglob("*.html")
        for tag, attributes in tags_of(page)
        if tag in LOADED
        for name in ("src", "href", "srcset", "data", "poster")
        if "//" in (address := attributes.get(name, "")) and not address.startswith("data:")
    ]
    assert asked == []
    styles = [*site.rglob("*.css"), *site.rglob("*.html")]
    assert [each.name for each in styles if OF_STYLES.search(each.read_text())] == []
    scripts = list(site.rglob("*.js"))
    assert [each.name for each in scripts if OF_SCRIPTS.search(each.read_text())] == []
    assert len(styles) > 5
    assert len(scripts) > 5


@pytest.mark.parametrize(
    "line",
    ["@import 'https://a.example/x.css'", "a { src: url(//a.example/x.woff2) }"],
)
def test_a_style_that_asks_another_host_is_seen(line: str) -> None:
    assert OF_STYLES.search(line)


@pytest.mark.parametrize("line", ['fetch("https://a.example")', "tag.src = '//a.example/x.js'"])
def test_a_script_that_asks_another_host_is_seen(line: str) -> None:
    assert OF_SCRIPTS.search(line)


def test_the_reference_has_every_public_name_of_the_client_and_every_method(site: Path) -> None:
    ids = {
        attributes["id"]
        for _, attributes in tags_of(site / "docs/site/python-api.html")
        if "id" in attributes
    }
    names = {f"bottomless.{name}" for name in bottomless.__all__}
    names |= {
        f"bottomless.client.{name}" for name in client.__all__ if name not in bottomless.__all__
    }
    for kind in (bottomless.Client, bottomless.AsyncClient):
        names |= {
            f"bottomless.{kind.__name__}.{name}"
            for name, _ in getmembers(kind, callable)
            if not name.startswith("_")
        }
    assert len(names) > 130
    assert names - ids == set()


def test_what_a_docstring_says_is_read_as_markdown(site: Path) -> None:
    page = (site / "docs/site/python-api.html").read_text()
    assert "`" not in page
    assert "Raises:" not in page
    assert re.search(r"<strong>Raises</strong></p>\s*<ul[^>]*>\s*<li><p><code", page)


def test_links_anchors_and_pages_that_lead_nowhere_fail_the_build(small: Built) -> None:
    said = re.findall(r"/source/(.+) \[[\w.]+\]$", small.told, re.MULTILINE)
    links = [line for line in said if "target" in line or "local id" in line]
    assert [line for line in links if line.startswith("README")] == [
        "README.md:3: WARNING: 'myst' cross-reference target not found: 'docs/none.md'",
        "README.md:3: WARNING: local id not found in doc 'docs/other': 'none'",
        "README.md:3: WARNING: 'myst' cross-reference target not found: 'none-here'",
    ]
    assert "docs/other.md: WARNING: document isn't included in any toctree" in said
    absent = [line for line in said if line.endswith("nonexisting document 'docs/glossary'")]
    assert len(absent) == 1


def test_every_docstring_of_the_reference_can_be_read(small: Built) -> None:
    """Of its page only a link to a page is told that the small site has not."""
    of_docstrings = [line for line in small.told.splitlines() if "docstring of" in line]
    assert of_docstrings == []
    of_its_page = [line for line in small.told.splitlines() if "site/python-api.md" in line]
    assert len(of_its_page) == 1
    assert "cross-reference target not found: '../client.md'" in of_its_page[0]


async def test_a_browser_finds_pages_by_their_words_with_no_server_at_all(
    site: Path, tmp_path: Path
) -> None:
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(site.joinpath("index.html").as_uri())
        assert (await tab.value("document.title")).startswith("Bottomless ")
        await tab.open(site.joinpath("search.html").as_uri() + "?q=takeover")
        found = await tab.until(
            "[...document.querySelectorAll('#search-results li a')].map(each => each.href)"
            ".filter(each => each.includes('0020-a-takeover-fences')).length"
        )
        assert found == 1
        assert tab.hosts() == {""}
        assert tab.failures() == []
