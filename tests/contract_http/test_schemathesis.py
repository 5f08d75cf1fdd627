"""H24: what the contract says and what the services do, held together by schemathesis.

Its program makes up requests from openapi/*.yaml, good and bad ones, one by one and in chains,
and checks the answers of a real server: no 5xx, no status, header, media type or body that is
not described, no good request refused and no bad one accepted.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis.configuration import storage_directory
from support.documents import documented
from support.server import AllInOne

from contract_http.links import add_links
from contract_http.seeded import Known, seed
from contract_http.staged_ids import draw_by_number
from openapi.bundle import PUBLIC, bundled

SEED: Final = os.environ.get("BOTTOMLESS_TEST_SEED", "20261121")
EXAMPLES: Final = int(os.environ.get("BOTTOMLESS_TEST_EXAMPLES", "5"))
"""Of each operation, and of chains; for a long run give thousands."""
COVERED: Final = ("ingest", "reader")
"""Where each bound of each parameter is tried in every run; elsewhere that is two thirds of all, a test of
its own."""
TIMEOUT_SECONDS: Final = 900 + EXAMPLES * 10

BINDINGS: Final = {
    "path.s": ("streams", 0.8),
    "path.c": ("consumers", 0.7),
    "path.q": ("queues", 0.8),
    "path.p": ("producers", 0.7),
    "path.g": ("groups", 0.7),
    "path.m": ("members", 0.7),
    "path.offset": ("offsets", 0.7),
    "path.fragment_id": ("fragments", 0.8),
    "path.lease_id": ("leases", 0.7),
    "path.key_id": ("keys", 0.7),
    "path.operation_id": ("operations", 0.8),
    "query.offset": ("specs", 0.8),
    "query.spec": ("specs", 0.8),
    "query.default": ("specs", 0.5),
    "query.consumer": ("consumers", 0.8),
    "query.expect_stream_id": ("stream_ids", 0.7),
    "query.from_offset": ("offsets", 0.7),
    "query.until_offset": ("offsets", 0.5),
    "header.If-Match": ("etags", 0.7),
    "header.If-None-Match": ("etags", 0.5),
    "header.Producer-Id": ("producers", 0.5),
    "header.Stream-Expected-Offset": ("offsets", 0.5),
}
"""Where a parameter takes its value from, and how often; else it is made up."""


def configuration(known: Known) -> str:
    lines = [
        "warnings = false",
        "[checks.not_a_server_error]",
        # Which of them may be is in hooks.py, by code.
        'expected-statuses = ["2xx", "3xx", "4xx", 503]',
        "[checks.negative_data_rejection]",
        "expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 412, 413, 414, 415, 416, 422, 428]",
        "[checks.missing_required_header]",
        "expected-statuses = [400, 401, 403, 404, 406, 415, 422, 428]",
        *(f"[dictionaries.{name}]\nvalues = {json.dumps(known[name])}" for name in known),
        "[parameters]",
        *(
            f'"{place}" = {{ dictionary = "{name}", probability = {probability} }}'
            for place, (name, probability) in BINDINGS.items()
        ),
        "[[operations]]",
        'include-operation-id = "delete_stream"',
        'parameters = { "path.s" = { dictionary = "doomed", probability = 0.8 } }',
    ]
    return "\n".join(lines)


def leave_out_texts(document: dict[str, Any]) -> None:
    """Take out the examples of bodies that are made up by hooks.py: its program sends no text.

    That they work as they stand is seen by test_served_contract.py.
    """
    for item in document["paths"].values():
        for operation in item.values():
            for body in operation.get("requestBody", {}).get("content", {}).values():
                if isinstance(body.get("example"), str):
                    del body["example"]


class UnderTest:
    """The server under test with a directory of its own for what the program writes."""

    def __init__(self, server: AllInOne, directory: Path, credential: str | None) -> None:
        self._server = server
        self._directory = directory
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            (directory / "schemathesis.toml").write_text(configuration(seed(client)))
        # One document, since a path may be that of two services: Allow names what both serve.
        document = bundled(*PUBLIC, secured=credential is not None)
        add_links(document)
        leave_out_texts(document)
        draw_by_number(document)
        (directory / "openapi.json").write_text(json.dumps(document))
        self._headers = [f"--header={name}: {value}" for name, value in headers.items()]

    def run(self, *arguments: str) -> None:
        command = [
            str(Path(sys.executable).parent / "schemathesis"),
            *("--config-file", "schemathesis.toml", "run", "openapi.json"),
            *("--url", self._server.url, "--seed", SEED, *self._headers),
            *("--max-examples", str(EXAMPLES), "--generation-database", "none"),
            *("--checks", "all", "--request-timeout", "240", "--no-color", *arguments),
        ]
        told = subprocess.run(
            command,
            cwd=self._directory,
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "contract_http.hooks",
                # Else it works out anew which characters there are, for more than a CPU second.
                "HYPOTHESIS_STORAGE_DIRECTORY": str(storage_directory().path),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        print(told.stdout[-2000:])
        assert told.returncode == 0, told.stdout[-20_000:] + told.stderr[-4000:]
        assert "Traceback" not in self._server.log()


@pytest.fixture(scope="module", params=["open", "locked"])
def tested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UnderTest]:
    """Without identity, and with it; who asks then has the root key."""
    directory = tmp_path_factory.mktemp(f"schemathesis-{request.param}")
    settings: dict[str, str] = {}
    credential = None
    if request.param == "locked":
        secret = secrets.token_hex(32)
        (directory / "root.secret").write_text(secret)
        settings = {
            "BOTTOMLESS_IDENTITY": "true",
            "BOTTOMLESS_ROOT_KEY_FILE": str(directory / "root.secret"),
        }
        credential = f"sk_root_{secret}"
    with AllInOne(directory / "data", settings) as server:
        yield UnderTest(server, directory, credential)


def chosen_of(name: str) -> list[str]:
    ids = {operation.operation_id for operation in documented(name)}
    return [f"--include-operation-id={each}" for each in sorted(ids)]


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("name", PUBLIC)
def test_every_operation_answers_as_its_document_says(tested: UnderTest, name: str) -> None:
    """H24."""
    tested.run(*chosen_of(name), "--phases", f"examples,{'coverage,' * (name in COVERED)}fuzzing")


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("name", [one for one in PUBLIC if one not in COVERED])
def test_every_bound_of_a_parameter_is_kept_as_its_document_says(
    tested: UnderTest, name: str
) -> None:
    """H24. What is only nearly right is sent to every operation by test_strictness.py too."""
    tested.run(*chosen_of(name), "--phases", "coverage")


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_chains_of_operations_over_all_services_do_too(tested: UnderTest) -> None:
    """H24."""
    tested.run("--phases", "stateful")
