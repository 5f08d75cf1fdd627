"""The results as Markdown, and into docs/performance.md between its markers.

    ./dev bench --publish

Pure but for the two files at the end: the same document gives the same tables.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, Spread
from bench.glance import glance
from bench.place import RESULTS, ROOT

BEGIN: Final = "<!-- measured: ./dev bench --publish writes from here -->"
END: Final = "<!-- to here -->"
GLANCE_BEGIN: Final = "<!-- at a glance: ./dev bench --publish writes from here -->"
GLANCE_END: Final = "<!-- the glance ends here -->"
PAGE: Final = ROOT / "docs" / "performance.md"
MET: Final = {True: "met", False: "**not met**", None: "not measured"}


def number(value: float) -> str:
    """Three digits that count, with what makes it short: 1.52 M, 940 k, 0.25."""
    for size, mark in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{mark}"
    return f"{value:.3g}"


def spread(found: Spread) -> str:
    if found.low == found.high:
        return number(found.middle)
    return f"{number(found.middle)} ({number(found.low)} to {number(found.high)})"


def _of(figures: list[Figure], value: Any) -> Spread:
    return Spread.of([value(figure) for figure in figures])


def goals(rows: Mapping[str, Any]) -> Iterator[str]:
    """One line for each goal of each row."""
    yield "| Work | Goal | Found: median (lowest to highest round) | |"
    yield "|---|---|---|---|"
    for row in rows.values():
        for goal in row["goals"]:
            found = goal["found"]
            unit = {"x": "x"}.get(goal["unit"], goal["unit"])
            told = "" if found is None else f"{spread(Spread(*found))} {unit}"
            word = "measured" if found and goal["met"] is None else MET[goal["met"]]
            yield f"| {row['title']} | {goal['goal']} | {told} | {word} |"


def sides(name: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The figures of one row."""
    yield f"### {row['title']}"
    yield ""
    yield (
        f"`./dev bench {name}`, {row['started']}, commit {row['machine']['commit']}, "
        f"{row['rounds']} rounds of {row['seconds']:g} s, "
        f"load average {row['load_before']} before and {row['load_after']} after."
    )
    yield ""
    unit = row["unit"]
    yield (
        f"| Side | {unit}/s | server CPU s per million | memory MiB | p50 / p99 / p99.9 ms | more |"
    )
    yield "|---|---|---|---|---|---|"
    for side, documents in row["sides"].items():
        figures = [Figure.from_json(document) for document in documents]
        yield f"| {side} | {' | '.join(_cells(figures))} |"
    for side, reason in row["missing"].items():
        yield f"| {side} | not measured: {_one_line(reason)} | | | | |"
    yield ""
    for note in row["notes"]:
        yield f"- {note}"
    if row["notes"]:
        yield ""


def _cells(figures: list[Figure]) -> Iterator[str]:
    yield spread(_of(figures, lambda figure: figure.rate))
    yield spread(_of(figures, lambda figure: figure.cpu_per_million))
    yield number(max(figure.rss_mib for figure in figures))
    waits = [
        _of(figures, lambda figure, name=name: getattr(figure, name)).middle
        for name in ("p50_ms", "p99_ms", "p999_ms")
    ]
    # Rows that are older than the last of them do not have it.
    yield " / ".join(number(wait) for wait in waits if wait)
    more = sorted(set(figures[0].extra) - {"received", "requests", "refusals"})
    if any(figure.extra.get("refusals") for figure in figures):
        more.append("refusals")
    told = [
        f"{number(_of(figures, lambda figure, key=key: figure.extra[key]).middle)} {key}"
        for key in more
    ]
    busy = _of(figures, lambda figure: figure.generator_cpu_seconds / figure.seconds).middle
    if busy:
        told.append(f"sender {busy:.0%} of a core")
    yield ", ".join(told)


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:160]


def about(rows: Mapping[str, Any]) -> Iterator[str]:
    """Machine and versions; each row was measured by itself."""
    machines = {
        json.dumps({key: value for key, value in row["machine"].items() if key != "commit"})
        for row in rows.values()
    }
    for machine in sorted(machines):
        facts = json.loads(machine)
        yield ", ".join(f"{key} {value}" for key, value in facts.items()) + "."
    versions: dict[str, str] = {}
    for row in rows.values():
        versions.update(row["versions"])
    yield (
        "Peers: "
        + ", ".join(f"{peer} {version}" for peer, version in sorted(versions.items()))
        + "."
    )


def page(rows: Mapping[str, Any]) -> str:
    """All of it."""
    parts = [*about(rows), "", *goals(rows), "", "![Goals](../bench/results/goals.png)", ""]
    parts += ["## Figures of each row", "", "![Rates](../bench/results/rates.png)", ""]
    for name, row in rows.items():
        parts += sides(name, row)
    return "\n".join(parts).rstrip() + "\n"


def waiting(titles: Mapping[str, str], rows: Mapping[str, Any]) -> str:
    """The rows of which nothing is kept yet."""
    left = [f"{title} (`{name}`)" for name, title in titles.items() if name not in rows]
    return f"Not measured yet: {'; '.join(left)}.\n\n" if left else ""


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with this text between two of its lines."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def written(page_before: str, titles: Mapping[str, str], kept: Mapping[str, Any]) -> str:
    """The page with the tables of all that is kept, and the first screen out of the same figures."""
    rows = {name: kept[name] for name in titles if name in kept}
    whole = between(page_before, BEGIN, END, waiting(titles, rows) + page(rows))
    return between(whole, GLANCE_BEGIN, GLANCE_END, glance(rows))


def publish(
    titles: Mapping[str, str], document: Path = RESULTS / "results.json", to: Path = PAGE
) -> None:
    """Write the tables between the markers of the page."""
    to.write_text(written(to.read_text(), titles, json.loads(document.read_text())))
