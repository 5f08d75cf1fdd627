"""The registry of error codes, in code, in the contract and in the operator's page."""

import re
from pathlib import Path
from typing import Any

import pytest

from bottomless.client.problems import CLASSES
from bottomless.errors import Code, Outcome
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import STATUS, problem_response
from bottomless_server.uploader.settings import UploaderSettings
from openapi.bundle import OPENAPI, read

ROOT = Path(__file__).parents[2]
CONTRACT: Any = read(OPENAPI / "components/errors.yaml")
REGISTRY: list[dict[str, Any]] = CONTRACT["x-codes"]


def test_the_contract_lists_the_codes_of_the_enum_in_its_order() -> None:
    codes = [code.value for code in Code]

    assert [entry["code"] for entry in REGISTRY] == codes
    assert CONTRACT["components"]["schemas"]["Code"]["enum"] == codes


def test_the_contract_gives_every_code_the_status_that_is_served() -> None:
    assert {entry["code"]: entry["status"] for entry in REGISTRY} == dict(STATUS)


@pytest.mark.parametrize("entry", REGISTRY, ids=lambda entry: str(entry["code"]))
def test_an_error_is_retryable_and_titled_as_the_contract_says(entry: dict[str, Any]) -> None:
    code = Code(entry["code"])
    error_class = CLASSES.get(code)
    response = problem_response((error_class or CLASSES[Code.INTERNAL])("a fact", code=code), "id")

    assert f'"title":"{entry["title"]}"'.encode() in bytes(response.body)
    assert entry["outcome"] in [None, *Outcome]
    if error_class is not None:
        assert entry["retryable"] is RAISED_OTHERWISE.get(code, error_class.default_retryable)


RAISED_OTHERWISE = {
    Code.MOVED: True,
    Code.COORDINATION_REGRESSED: False,
    Code.PRODUCER_SEQUENCE_GAP: True,
}
"""Codes whose raiser knows better than their class: one goes elsewhere, one needs an operator."""


def test_operators_find_a_heading_for_every_code() -> None:
    page = (ROOT / "docs/errors.md").read_text()

    assert re.findall(r"^## ([a-z-]+)$", page, re.MULTILINE) == [code.value for code in Code]


@pytest.mark.parametrize(
    "settings",
    [
        CommonSettings,
        IngestSettings,
        UploaderSettings,
        ManifestSettings,
        ReaderSettings,
        QueuesSettings,
    ],
)
def test_operators_find_every_setting_with_its_default(settings: type[CommonSettings]) -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for name, field in settings.model_fields.items():
        default = field.get_default()
        words = {None: "none", True: "true", False: "false"}
        shown = words[default] if default is None or isinstance(default, bool) else default

        assert f"| `BOTTOMLESS_{name.upper()}` | {shown} |" in page
