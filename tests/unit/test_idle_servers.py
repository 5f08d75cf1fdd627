"""No server of tests outlives those who use it: idle ones took a twentieth of a run of everything.

See docs/decisions/0161-servers-of-tests-end-with-those-who-use-them.md.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
SERVERS: Final = {"AllInOne", "OnS3", "SeparateProcesses", "Served", "four_processes"}


def fixtures_of(source: str, scope: str) -> Iterator[ast.FunctionDef]:
    """The fixtures in a file that last as long as this."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(decorator, ast.Call)
            and ast.unparse(decorator.func) == "pytest.fixture"
            and f"scope='{scope}'" in ast.unparse(decorator)
            for decorator in node.decorator_list
        ):
            yield node


def servers_of(fixture: ast.FunctionDef) -> set[str]:
    """What it starts."""
    calls = (node.func for node in ast.walk(fixture) if isinstance(node, ast.Call))
    return SERVERS & {ast.unparse(called) for called in calls}


def files_with(words: str) -> dict[Path, str]:
    texts = {path: path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)}
    return {path: text for path, text in texts.items() if words in text}


def test_no_server_runs_until_its_worker_ends() -> None:
    """One of a whole session does, whoever used it last."""
    found = {
        f"{path.relative_to(TESTS)}: {fixture.name}": servers_of(fixture)
        for path, text in files_with('scope="session"').items()
        for fixture in fixtures_of(text, "session")
    }
    assert found, "no fixture of a session was found at all"
    assert {name: servers for name, servers in found.items() if servers} == {}


def test_what_the_tests_of_a_folder_share_ends_with_them() -> None:
    """Where a folder is no package, pytest takes the whole session for it and says nothing."""
    shared = [
        path
        for path, text in files_with('scope="package"').items()
        for _ in fixtures_of(text, "package")
    ]
    assert shared, "no fixture of a folder was found at all"
    assert [path for path in shared if not (path.parent / "__init__.py").exists()] == []


def test_a_server_of_a_session_is_seen() -> None:
    source = (
        '@pytest.fixture(scope="session")\ndef one():\n    with AllInOne(place) as it: yield it\n'
    )
    [fixture] = fixtures_of(source, "session")
    assert servers_of(fixture) == {"AllInOne"}
    assert not list(fixtures_of(source, "package"))
