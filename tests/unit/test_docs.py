"""The docs lead somewhere: every link to a file of this repository has its file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
MODULE = re.compile(r"\b((?:services|shared|tests)/[\w/]+\.py)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_the_docs_has_its_file(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_module_that_a_docstring_names_exists() -> None:
    sources = [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]
    named = {
        (source.name, path) for source in sources for path in MODULE.findall(source.read_text())
    }
    assert len(named) > 5
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []
