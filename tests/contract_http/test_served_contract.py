"""H24: `/openapi.json` of a running server is the contract of openapi/, whole and valid."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate
from support.documents import PUBLIC, bundled, documented
from support.server import AllInOne

from contract_http.regenerate import SERVED

HEALTH = ("/livez", "/readyz")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with AllInOne(tmp_path_factory.mktemp("contract") / "data") as server:
        yield httpx.get(f"{server.url}/openapi.json").json()


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_installed_is_what_openapi_says(name: str) -> None:
    """Where it is not, run contract_http/regenerate.py."""
    assert json.loads((SERVED / f"{name}.json").read_text()) == bundled(name)


def test_what_is_served_is_a_valid_document(served: Any) -> None:
    validate(served)


def test_every_operation_is_served_with_its_words(served: Any) -> None:
    """H24."""
    contract = {name: bundled(name)["paths"] for name in PUBLIC}
    for operation in documented(*PUBLIC):
        if operation.path in HEALTH:
            continue
        told = served["paths"][operation.path][operation.method]
        described = contract[operation.service][operation.path][operation.method]
        assert told == described, operation.name
    paths = served["paths"].items()
    count = len({each.name for each in documented(*PUBLIC) if each.path not in HEALTH})
    assert sum(len(item) for _, item in paths) == count
