"""The first screen of docs/performance.md: arithmetic, and that it says what the tables say."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bench import glance, tables
from bench.figures import Figure
from bench.report import DOCUMENT, kept_rows
from bench.rows import ROWS

TITLES = {row.name: row.title for row in ROWS.values()}


def kept(*sides: tuple[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for (row, side), more in sides:
        figure = replace(Figure(units=1_000_000, seconds=1), **more)
        rows.setdefault(row, {"sides": {}})["sides"][side] = [figure.to_json()]
    return rows


def test_a_core_does_in_a_second_what_a_second_of_cpu_does() -> None:
    rows = kept((("append-64k", "ours"), {"cpu_seconds": 0.5, "p50_ms": 1.5, "p99_ms": 4.25}))
    (line,) = [line for line in glance.per_core(rows) if "64 KiB" in line]
    assert "2,000,000 records, 200 MB; 0.31 ms an append" in line
    assert "| 1.5 / 4.25 ms |" in line


def test_what_is_not_kept_is_not_measured_yet() -> None:
    told = list(glance.per_core({}))
    assert sum(glance.UNKNOWN in line for line in told) == len(glance.LINES)
    assert glance.UNKNOWN in "".join(glance.per_dollar({}))


def test_a_gb_costs_its_cores_and_requests() -> None:
    found = glance.price(cpu_per_gb=9, puts_per_gib=20, gets_per_gib=140)
    assert found.compute == pytest.approx(9 / 3600 * 0.04)
    assert found.puts == pytest.approx(20 / 1.073741824 * 0.000005)
    assert found.gets == pytest.approx(140 / 1.073741824 * 0.0000004)
    assert found.all == found.compute + found.puts + found.gets


def test_a_dollar_is_told_by_the_kept_figures() -> None:
    rows = kept(
        (glance.COST, {"extra": {glance.CPU_PER_GB: 9.0, glance.PUTS: 20.0}}),
        (glance.COLD, {"extra": {glance.GETS: 140.0}}),
        (glance.COST_RABBIT, {"extra": {glance.CPU_PER_GB: 18.0}}),
    )
    told = " ".join(glance.per_dollar(rows))
    each = glance.price(9, 20, 140).all
    assert "takes 9 CPU seconds" in told
    assert f"or {float(f'{1 / each:.3g}'):,.0f} GB for a dollar" in told
    assert "takes 18 CPU seconds for the same GB" in told


def test_each_line_names_a_row_that_there_is() -> None:
    assert {line.row for line in glance.LINES} <= set(ROWS)
    assert {glance.COST[0], glance.COLD[0]} <= set(ROWS)


def test_the_page_says_what_is_kept() -> None:
    """`./dev bench --publish` would change nothing: nobody wrote a figure by hand, and none is of
    another measurement than its neighbours."""
    page = tables.PAGE.read_text()
    assert tables.written(page, TITLES, kept_rows(DOCUMENT)) == page
    assert json.loads(DOCUMENT.read_text())
