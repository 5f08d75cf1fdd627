"""The docs lead somewhere, name what exists, and avoid the terms that the glossary says to avoid."""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]
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


FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|yaml|yml|conf|c|toml))(?:::\w+)?`")
BASES = ("", "services/bottomless_server", "shared/bottomless", "tests", "tests/unit")


def test_every_file_that_a_page_names_exists() -> None:
    pages = [*PAGES, *ROOT.glob("s*/*.md")]
    named = {(page.name, path) for page in pages for path in FILE.findall(page.read_text())}
    assert len(named) > 100
    assert [pair for pair in named if not any((ROOT / b / pair[1]).exists() for b in BASES)] == []


ALONE = re.compile(
    r'^ *"""(?:(?:The s|S)ame\b|As (?:above|`)|Of |Those |These |Who(?:ever|se)? |Raises\b).*',
    re.MULTILINE,
)
"""A docstring that begins so says nothing in a tooltip, where nothing stands above it."""
WITHOUT_SUBJECT = re.compile(
    r'^ *"""(?:As|By|For|From|Which|With|Without|That|And|But|Or) .*', re.MULTILINE
)
"""A docstring that begins so is most often the end of a sentence that only its writer knows."""
WITHOUT_SUBJECT_MAX = 24


def test_docstrings_stand_alone() -> None:
    assert ALONE.search('    """The same for a tenant."""')
    assert ALONE.search('    """Whose key it is."""')
    found = {str(source): ALONE.findall(source.read_text()) for source in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_hardly_any_docstring_begins_in_the_middle_of_a_sentence() -> None:
    assert WITHOUT_SUBJECT.search('    """For all streams of a process; it keeps nothing."""')
    found = [line for source in SOURCES for line in WITHOUT_SUBJECT.findall(source.read_text())]
    assert len(found) <= WITHOUT_SUBJECT_MAX, found


def test_status_codes_stand_where_contributors_are_told() -> None:
    told = re.search(
        r"Status codes stand in `([\w/.]+)` only", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert told is not None
    sources = (ROOT / "services/bottomless_server").rglob("*.py")
    tables = [
        path
        for path in sources
        if re.search(r"^\s+Code\.\w+: \d{3},$", path.read_text(), re.MULTILINE)
    ]
    assert tables == [ROOT / "services/bottomless_server" / told[1]]


def test_every_module_that_a_docstring_names_exists() -> None:
    named = {
        (source.name, path) for source in SOURCES for path in MODULE.findall(source.read_text())
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


def test_every_scenario_of_leaderless_streams_has_its_tests() -> None:
    """L37 was never given."""
    section = GUARANTEES.partition("## Scenarios of leaderless streams")[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\| L(\d+)(?: to L(\d+))? \| [^|]+ \|([^|]*)\|([^|]*)\|$", section, re.MULTILINE
    )
    numbers = [n for first, last, *_ in rows for n in range(int(first), int(last or first) + 1)]
    assert numbers == [n for n in range(1, 41) if n != 37]
    assert [first for first, _, processes, _ in rows if not RUN.search(processes)] == []


def test_every_guard_is_in_its_place_and_has_a_run_that_must_fail() -> None:
    section = GUARANTEES.partition("## Guards")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    guards = PLACE.findall(section)
    assert len(guards) == len(rows) > 35
    for path, symbol, test, name in guards:
        assert symbol in (ROOT / path).read_text(), f"{symbol} is not in {path}"
        assert is_test(test, name), f"there is no {test}::{name}"


def test_every_alarm_has_a_row_in_the_runbooks() -> None:
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    page = (ROOT / "docs/runbooks.md").read_text()
    table = page.partition("## Alarms")[2].partition("\n## ")[0]
    named = re.findall(r"`(Bottomless\w+)`", table)
    assert sorted(named) == sorted(re.findall(r"- alert: (\w+)", rules))
    assert len(named) > 15


def test_every_runbook_that_an_alarm_names_is_there() -> None:
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    named = re.findall(r"^ *runbook: (\S+)#(\S+)$", rules, re.MULTILINE)
    assert len(named) == rules.count("runbook: ") > 5
    assert [one for one in named if one[1] not in slugs(ROOT / one[0], "")] == []


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


# The glossary's "Terms to avoid". The words are ordinary ones with honest uses: a queue of
# uploads, an error message, the writer of a file. So each row of the table has a pattern of its
# misuse, and a sentence that shows it.

OF_STREAM = r"of (?:a|an|the|this|that|each|every|one) stream\b"
MISUSED = {
    "topic, log, queue, partition (of a stream)": (
        rf"\btopics?\b|\b(?:queue|partition)s? {OF_STREAM}",
        "Append to the topic.",
    ),
    "message, event, row (of a stream)": (
        rf"\b(?:message|event|row)s? {OF_STREAM}|\bappend(?:s|ed|ing)? (?:a |the )?(?:message|event)s?\b",
        "The first message of a stream is at offset 0.",
    ),
    "high-water mark": (r"\bhigh[- ]?water[- ]?marks?\b", "Read up to the high-water mark."),
    "leader, master, writer": (
        rf"\bleaders?\b|\b(?:master|writer)s? {OF_STREAM}",
        "Ask the leader of the stream.",
    ),
    "term, generation (of an owner)": (
        r"\bowner's (?:term|generation)\b|\b(?:term|generation)s? of (?:an|the|its) owner",
        "The generation of the owner is in the chunk.",
    ),
    "blob, part": (
        r"\bblobs?\b|\bparts? of (?:a|the) stream in (?:object storage|the bucket)",
        "One blob holds many chunks.",
    ),
    "behind (of an offset, a record, a byte, a step that comes later)": (
        r"\bbehind\b",
        "The stream goes on 2^32 offsets behind the last uploaded record.",
    ),
}
HONEST = re.compile(
    r"\bbehind (?:(?:a|an|the|our|your) )?(?:\w+ )?(?:proxy|proxies|nginx|TLS|balancer|one address)\b"
    r"|\b(?:leave|leaves|leaving|left|lag|lags|lagging|falls?|fell|fallen|stays?|stayed)"
    r" (?:\w+ ){0,3}behind\b|\bserver-sent events\b",
    re.IGNORECASE,
)
"""Behind what really stands in front, what was left, what is slower; and a name of HTTP's."""
OTHERS = re.compile(r"\b(?:Kafka|RabbitMQ|NATS|Kinesis|Pulsar|SQS)\b")
CONTRACTS = [*ROOT.glob("openapi/**/*.yaml")]
# Clients of the broker contract say topic and partition, so its members are called so.
PROSE = [*PAGES, *ROOT.glob("s*/*.md"), *(one for one in CONTRACTS if one.stem != "broker")]
ANY = re.compile("|".join(pattern for pattern, _ in MISUSED.values()), re.IGNORECASE)


def misuses(pattern: str, prose: str) -> list[str]:
    """The sentences of a text that use a term as the pattern says, in our own name."""
    sentences = re.split(r"(?<=[.;:|]) ", " ".join(prose.split()))
    return [
        sentence
        for sentence in sentences
        if re.search(pattern, HONEST.sub("", sentence), re.IGNORECASE)
        and not OTHERS.search(sentence)
    ]


def prose_of_page(text: str) -> str:
    """A page without its code, and without the table that has to name the terms."""
    text = text.partition("## Terms to avoid")[0]
    return re.sub(
        r"`[^`\n]*`", "it", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def prose_of_source(text: str) -> str:
    """Docstrings, of attributes too, and comments."""
    docstrings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return prose_of_page("\n".join(docstrings) + "\n" + "\n".join(comments))


@cache
def suspects() -> dict[str, str]:
    """The prose of each file in which one of the words stands at all."""
    found = {}
    for path in (*PROSE, *SOURCES):
        text = path.read_text()
        if ANY.search(" ".join(text.split())):
            source = path.suffix == ".py"
            found[str(path.relative_to(ROOT))] = (prose_of_source if source else prose_of_page)(
                text
            )
    return found


def test_every_term_to_avoid_has_a_pattern() -> None:
    table = (ROOT / "docs/glossary.md").read_text().partition("## Terms to avoid")[2]
    rows = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines() if row[:2] == "| "]
    assert rows[1:] == list(MISUSED)


@pytest.mark.parametrize("term", MISUSED)
def test_a_term_to_avoid_is_found_where_it_is_misused(term: str) -> None:
    pattern, example = MISUSED[term]
    assert misuses(pattern, example) == [example]


@pytest.mark.parametrize("term", MISUSED)
def test_no_page_and_no_docstring_misuses_a_term(term: str) -> None:
    assert len(PROSE) > 50
    assert len(SOURCES) > 300
    pattern, _ = MISUSED[term]
    found = {path: misuses(pattern, prose) for path, prose in suspects().items()}
    assert {path: sentences for path, sentences in found.items() if sentences} == {}


@pytest.mark.parametrize(
    "sentence",
    [
        "They run behind nginx, or behind another proxy.",
        "A socket that a dead process left behind is removed.",
        "Uploads lag far behind.",
        "In Kafka this is a topic.",
        "An error message, a queue of uploads, the writer of a file.",
    ],
)
def test_honest_uses_of_the_words_stay_possible(sentence: str) -> None:
    assert [pattern for pattern, _ in MISUSED.values() if misuses(pattern, sentence)] == []
