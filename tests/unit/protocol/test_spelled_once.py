"""Every name that the services use on the wire among themselves is spelled by `protocol/` alone.

The names are those of the contract, openapi/internal.yaml: paths, parameters, headers, members. A
module speaks this protocol if it imports a path, an encoder or a decoder of it; nobody else can,
since no other module spells a path. Who imports values alone (`Bounds`) never sees the wire.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from openapi.bundle import OPENAPI, read

ROOT: Final = Path(__file__).parents[3]
SERVER: Final = ROOT / "services" / "bottomless_server"
PROTOCOL: Final = SERVER / "protocol"
MESSAGES: Final = frozenset(
    {"forwarding", "keys", "parts", "registry", "secret", "supers", "tail", "uploads", "wal"}
)
"""The modules of `protocol/` that hold messages."""
FAKES: Final = (
    "tests/support/uploading.py",
    "tests/unit/ingest/harness.py",
    "tests/unit/reader/protocol.py",
)
"""Tests' own ingest and manifest, which answer whoever asks them in this protocol."""
OTHER_NAMES: Final = {
    # Columns of the entries of a manifest, which object storage has; a node of its tree, in the cache.
    "services/bottomless_server/reader/roots.py": {
        "first_offset",
        "first_timestamp",
        "next_offset",
        "node",
        "uid",
    },
    # Members of what the public is answered.
    "services/bottomless_server/queues/front/placing.py": {"items", "name"},
    # Members of what the public is answered.
    "services/bottomless_server/reader/super_offsets.py": {
        "index",
        "layout",
        "name",
        "partitions",
        "state",
        "super_id",
    },
    # Columns of the rows that a test gets to see.
    "tests/unit/ingest/harness.py": {"offset"},
}
"""What is called like a name of the wire and is none, by module."""
HTTP_NAMES: Final = frozenset({"etag", "if-none-match", "authorization"})
"""What HTTP itself calls so, wherever it is used."""
FOR_TESTS: Final = "/internal/v1/fault-points"
"""No service asks another for it; its members stand beside its handler."""
FORWARDED: Final = frozenset(
    {
        "bottomless-forwarded-tenant",
        "bottomless-forwarded-actor",
        "bottomless-forwarded-undelivered",
    }
)


def _contract() -> dict[str, Any]:
    found: dict[str, Any] = read(OPENAPI / "internal.yaml")
    return found


def _members(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield from node["properties"]
        for key, value in node.items():
            # Of an object that is passed on as it is nothing is spelled here.
            if key != "examples":
                yield from _members(value)
    elif isinstance(node, list):
        for each in node:
            yield from _members(each)


def _headers(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("headers"), dict):
            yield from (name.lower() for name in node["headers"])
        if node.get("in") == "header":
            yield node["name"].lower()
        for value in node.values():
            yield from _headers(value)
    elif isinstance(node, list):
        for each in node:
            yield from _headers(each)


def _parameters(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("in") == "query":
            yield node["name"]
        for value in node.values():
            yield from _parameters(value)
    elif isinstance(node, list):
        for each in node:
            yield from _parameters(each)


CONTRACT: Final = {
    **_contract(),
    "paths": {path: item for path, item in _contract()["paths"].items() if path != FOR_TESTS},
}
HEADERS: Final = frozenset(_headers(CONTRACT)) - HTTP_NAMES | FORWARDED
NAMES: Final = HEADERS | frozenset(_members(CONTRACT)) | frozenset(_parameters(CONTRACT))


def _texts(path: Path) -> list[tuple[int, str]]:
    """Every piece of text in a module but its docstrings, by its line."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                found.append((node.lineno, node.value))
            elif isinstance(node.value, bytes):
                found.append((node.lineno, node.value.decode("latin-1")))
    return found


def _is_value(name: str) -> bool:
    """Whether a name is that of a class or of a bound."""
    return name.endswith("_MAX") or (name[0].isupper() and not name.isupper())


def _speaks(path: Path) -> bool:
    # Most modules need no closer look.
    return "bottomless_server.protocol" in path.read_text("utf-8") and any(
        not _is_value(each.name)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "") in {f"bottomless_server.protocol.{name}" for name in MESSAGES}
        for each in node.names
    )


OUTSIDE: Final = sorted(path for path in SERVER.rglob("*.py") if not path.is_relative_to(PROTOCOL))
SPEAKERS: Final = [path for path in OUTSIDE if _speaks(path)] + [ROOT / name for name in FAKES]


def test_there_is_something_to_look_for() -> None:
    assert {"chunks-epoch", "first_offset", "committed_next", "wait_ms", "secret_sha256"} <= NAMES
    assert len(SPEAKERS) > 15
    assert all(map(_speaks, SPEAKERS))


def test_only_the_protocol_spells_internal_paths_and_their_headers() -> None:
    spelled = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in [*OUTSIDE, *(ROOT / name for name in FAKES)]
        if any(name in path.read_text("utf-8").lower() for name in ("/internal/", *HEADERS))
        for line, text in _texts(path)
        if "/internal/" in text or text.lower() in HEADERS
    ]
    assert spelled == []


@pytest.mark.parametrize("path", SPEAKERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_who_speaks_the_protocol_spells_none_of_its_names(path: Path) -> None:
    names = NAMES - OTHER_NAMES.get(path.relative_to(ROOT).as_posix(), set())
    spelled = [f"{line}: {text}" for line, text in _texts(path) if text.lower() in names]
    assert spelled == []


def test_the_protocol_spells_every_name_of_the_contract() -> None:
    spelled: set[str] = set()
    for path in PROTOCOL.glob("*.py"):
        spelled |= {text.lower() for _, text in _texts(path)}
        # Members of a message are the fields of its class.
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                spelled.add(node.target.id)
    # What `encode_config` and the models of shared/ spell is theirs.
    elsewhere = {"uid", "generation", "size", "crc"}
    assert NAMES - spelled - elsewhere == set()
