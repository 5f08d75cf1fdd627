"""The docs lead somewhere: every link to a file of this repository has its file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
HEADING_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*\.md|)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
MODULE = re.compile(r"\b((?:services|shared|tests)/[\w/]+\.py)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_the_docs_has_its_file(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_has_its_heading(page: Path) -> None:
    links = HEADING_LINK.findall(page.read_text())
    assert [(to, slug) for to, slug in links if slug not in slugs(page, to)] == []


def slugs(page: Path, to: str) -> set[str]:
    text = (page.parent / to if to else page).read_text()
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def test_every_module_that_a_docstring_names_exists() -> None:
    sources = [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]
    named = {
        (source.name, path) for source in sources for path in MODULE.findall(source.read_text())
    }
    assert len(named) > 5
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []


GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
RUN = re.compile(r"`((?:[\w-]+/)+\w+\.py)(?:::(\w+))?`")
PLACE = re.compile(
    r"^\| [^|]+ \| `([\w/.]+)`: `([\w.]+)` \| [^|]+ \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE
)


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = RUN.findall(GUARANTEES) + [(folder, "") for folder in FOLDER.findall(GUARANTEES)]
    assert len(named) > 60
    assert [one for one in named if not is_test(*one)] == []


UNDER = "| Under | It holds that | Shown by |"
FOLDER = re.compile(
    r"`((?:chaos|contract_http|contracts|faults|journeys|linearizability|model|simulation|unit)(?:/\w+)*)/?`"
)


def is_test(path: str, name: str) -> bool:
    for base in ("tests", "."):
        found = ROOT / base / path
        if found.exists():
            return not name or f"def {name}(" in found.read_text()
    return False


def test_every_guarantee_names_a_test() -> None:
    section = GUARANTEES.partition("## What holds")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ") and row != UNDER]
    assert len(rows) > 30
    without = [row for row in rows if not RUN.search(row) and not FOLDER.search(row)]
    assert without == []


def test_every_guard_is_in_its_place_and_has_a_run_that_must_fail() -> None:
    section = GUARANTEES.partition("## Guards")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    guards = PLACE.findall(section)
    assert len(guards) == len(rows) > 35
    for path, symbol, test, name in guards:
        assert symbol in (ROOT / path).read_text(), f"{symbol} is not in {path}"
        assert is_test(test, name), f"there is no {test}::{name}"


def test_every_bound_names_a_setting_that_exists_and_a_test() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    section = page.partition("### Every queue, cache and wait")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 30
    assert [row for row in rows if not RUN.search(row)] == []
    assert [one for one in RUN.findall(section) if not is_test(*one)] == []
    settings = set(re.findall(r"^\| `(BOTTOMLESS_\w+)` \|", page, re.MULTILINE))
    named = set(re.findall(r"BOTTOMLESS_\w+", section))
    assert len(named) > 20
    assert named <= settings, named - settings


def test_no_page_and_no_message_tells_to_install_what_no_index_has() -> None:
    """`bottomless` is free on public indexes: whoever takes the name would be installed."""
    told = re.compile(r"pip install[^\n`]*?['\" ]bottomless(?:-server)?(?:\[|['\"`\s]|$)")
    places = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "shared").rglob("*.py"),
        *(ROOT / "services").rglob("*.py"),
    ]
    assert told.search("pip install 'bottomless[spark]'")
    assert told.search("pip install bottomless")
    assert [str(place) for place in places if told.search(place.read_text())] == []
