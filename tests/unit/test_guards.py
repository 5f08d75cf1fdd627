"""Marks of guards in the code, the table of docs/guarantees.md and the tests that take guards away
name the same guards."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from support.guards import guarded, remove

from bottomless.guards import guard

ROOT: Final = Path(__file__).parents[2]
ROW: Final = re.compile(r"^\| ([^|]+) \| `([^`]+)`: `([^`]+)` \|", re.MULTILINE)


@cache
def marks() -> dict[str, tuple[str, str]]:
    """The file and the function of each mark in the source."""
    return {
        mark.args[0].value: (str(path.relative_to(ROOT)), function.name)  # type: ignore[attr-defined]
        for folder in ("shared", "services")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "@guard(" in (text := path.read_text())
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for mark in function.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "guard"
    }


def test_each_mark_has_its_row_in_the_docs_and_lies_where_that_says() -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    rows = {name: (path, function) for name, path, function in ROW.findall(text)}
    assert {name: rows.get(name) for name in marks()} == marks()
    assert len(marks()) >= 55, "a guard lost its mark"


def test_each_guard_is_taken_away_by_some_test() -> None:
    # Read first are those that have the words at all, which are few, and all others if need be.
    rest = set(marks())
    for has_words in (True, False):
        for path in sorted((ROOT / "tests").rglob("*.py")) if rest else []:
            text = path.read_text()
            if any(name in text for name in rest) is has_words:
                rest -= set(strings_of(path, text))
    assert sorted(rest) == []


def strings_of(path: Path, text: str) -> Iterator[str]:
    if path == Path(__file__):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            # What a program of its own is to run without a guard is text.
            yield from re.findall(r'replace\("([^"]+)"', node.value)


def test_a_mark_leaves_the_function_as_it_is_and_no_two_have_one_name() -> None:
    for path, _ in marks().values():
        import_module(path.removesuffix(".py").partition("/")[2].replace("/", "."))
    for name, (path, function) in marks().items():
        found = guarded(name)
        assert (found.__name__, found.__module__.rpartition(".")[2]) == (function, Path(path).stem)
    with pytest.raises(AssertionError, match="two guards"):
        guard("contiguity of runs")(print)


def test_a_guard_is_taken_away_wherever_it_is_known_and_comes_back() -> None:
    tree = import_module("bottomless_server.manifest.tree.core.publish_decision")
    sys.modules["bottomless_server.elsewhere"] = elsewhere = type(sys)("elsewhere")
    known = tree.contiguous_run
    vars(elsewhere)["known_as"] = known
    try:
        with pytest.MonkeyPatch.context() as patch:
            remove(patch, "contiguity of runs", print)
            assert tree.contiguous_run is vars(elsewhere)["known_as"] is print
        assert tree.contiguous_run is vars(elsewhere)["known_as"] is known
    finally:
        del sys.modules["bottomless_server.elsewhere"]
