"""What openapi/*.yaml says and what the services serve is the same: paths, methods, parameters."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
import yaml
from openapi_spec_validator import validate
from openapi_spec_validator.readers import read_from_filename
from starlette.types import ASGIApp
from support.asgi import client_of
from support.manifest import ManifestHarness

from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.app import ManifestService
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.health import PATHS, Health
from bottomless_server.uploader.app import create_service as create_uploader
from bottomless_server.uploader.settings import UploaderSettings
from unit.ingest.harness import IngestHarness
from unit.queues.service_harness import one_node
from unit.reader.harness import ReaderHarness

OPENAPI: Final = Path(__file__).parents[2] / "openapi"
DOCUMENTS: Final = sorted(str(path.relative_to(OPENAPI)) for path in OPENAPI.rglob("*.yaml"))
METHODS: Final = ("get", "head", "put", "post", "patch", "delete")
PUBLIC: Final = ("ingest", "manifest", "queues", "reader")

SAMPLES: Final[dict[str, Any]] = {
    "offset": "0",
    "consumer": "billing",
    "s": "orders",
    "name": "orders",
    "c": "billing",
    "q": "tasks",
    "tenant": "default",
    "p": "loader-7",
    "stream_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11",
    "super_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c55",
    "lease_id": "ls_" + "0" * 32,
    "key_id": "0" * 24,
    "node_id": "0" * 32,
    "m": "0" * 32,
    "operation_id": "op_" + "0" * 32,
    "instance": "0" * 32,
    "sequence": "0",
    "fragment_id": "0" * 20 + "-" + "0" * 32,
}


class Operation(NamedTuple):
    path: str
    method: str
    query: dict[str, Any]
    """Schemas of the parameters of the query, by name."""
    responses: dict[str, Any]
    examples: dict[str, Any]
    """Of parts of its path."""
    service: str

    @property
    def url(self) -> str:
        return self.path.format_map({**self.examples, **SAMPLES})


@cache
def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def look_up(file: Path, reference: str) -> tuple[Path, Any]:
    """The file and the value that a reference leads to."""
    name, _, pointer = reference.partition("#")
    target = (file.parent / name).resolve() if name else file
    value = read(target)
    for part in pointer.split("/")[1:]:
        value = value[part.replace("~1", "/").replace("~0", "~")]
    return target, value


def resolved(file: Path, value: Any) -> tuple[Path, Any]:
    while isinstance(value, dict) and "$ref" in value:
        file, value = look_up(file, value["$ref"])
    return file, value


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for member in value.values():
            yield from references(member)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def operations(name: str) -> list[Operation]:
    document = OPENAPI / f"{name}.yaml"
    found = []
    for path, item in read(document)["paths"].items():
        file, shared = resolved(document, item)
        for method in shared.keys() & set(METHODS):
            operation = shared[method]
            given = [
                resolved(file, parameter)
                for parameter in shared.get("parameters", []) + operation.get("parameters", [])
            ]
            query = {
                parameter["name"]: resolved(where, parameter["schema"])[1]
                for where, parameter in given
                if parameter["in"] == "query"
            }
            examples = {
                parameter["name"]: parameter["example"]
                for _, parameter in given
                if parameter["in"] == "path" and "example" in parameter
            }
            responses = {
                status: resolved(file, response)[1]
                for status, response in operation["responses"].items()
            }
            found.append(
                Operation(path, method, query, responses, examples, operation["x-service"])
            )
    return found


def table(found: list[Operation]) -> dict[str, set[str]]:
    """Methods by path, whatever the parts of the path are called."""
    methods: dict[str, set[str]] = {}
    for operation in found:
        shape = re.sub(r"{[^}]*}", "{}", operation.path)
        methods.setdefault(shape, set()).add(operation.method)
    return methods


def served(app: ASGIApp) -> ASGIApp:
    """An application as a process serves it (runtime/process/service.py)."""
    return wrap(Health({}).around(app))


async def served_table(client: httpx.AsyncClient) -> dict[str, set[str]]:
    paths = (await client.get("/openapi.json")).json()["paths"]
    found = [
        Operation(path, method, {}, {}, {}, "") for path, item in paths.items() for method in item
    ]
    health = [
        Operation(path, method, {}, {}, {}, "") for path in PATHS for method in ("get", "head")
    ]
    return table(found + health)


@asynccontextmanager
async def running(name: str, side: str, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one side of a service that was built of memory parts."""
    if name == "reader":
        reader = ReaderHarness()
        reader.fill(10)
        async with client_of(served(getattr(reader.service, side))) as client:
            yield client
        await reader.aclose()
    elif name == "manifest":
        manifest = ManifestService(ManifestHarness().context)
        await manifest.start()
        async with client_of(served(getattr(manifest, side))) as client:
            yield client
        await manifest.stop()
    elif name == "queues":
        async with one_node(directory) as node:
            await node.create("tasks")
            async with client_of(served(getattr(node.service, side))) as client:
                yield client
    elif name == "ingest":
        harness = await (await IngestHarness(directory / "ingest").declare()).start()
        async with client_of(served(getattr(harness.service, side))) as client:
            yield client
        await harness.aclose()
    else:
        settings = UploaderSettings(manifest_url="http://manifest")
        async with client_of(
            served(getattr(create_uploader(settings, MemoryDrive()), side))
        ) as client:
            yield client


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_is_valid_and_its_references_lead_somewhere(name: str) -> None:
    spec, base_uri = read_from_filename(str(OPENAPI / name))
    validate(spec, base_uri=base_uri)

    for reference in references(read(OPENAPI / name)):
        assert look_up(OPENAPI / name, reference)[1], reference


@pytest.mark.parametrize("name", [*PUBLIC, "internal"])
def test_every_answer_is_described_and_every_problem_is_the_one_shape(name: str) -> None:
    document = read(OPENAPI / f"{name}.yaml")
    assert "Problem" not in document["components"]["schemas"]
    for operation in operations(name):
        for status, response in operation.responses.items():
            assert response.get("description"), (operation.path, operation.method, status)
            for media_type, content in response.get("content", {}).items():
                if media_type == "application/problem+json":
                    assert any(
                        reference.endswith("#/components/schemas/Problem")
                        for reference in references(content)
                    ), (operation.path, status)


@pytest.mark.parametrize("name", PUBLIC)
async def test_the_public_side_is_what_its_document_says(name: str, tmp_path: Path) -> None:
    async with running(name, "public", tmp_path) as client:
        assert await served_table(client) == table(operations(name))
        await check_operations(client, operations(name))


async def test_the_internal_sides_are_what_their_document_says_of_each(tmp_path: Path) -> None:
    for name in ("ingest", "manifest", "uploader"):
        documented = [one for one in operations("internal") if one.service in (name, "every")]
        assert len(documented) > len(PATHS)
        async with running(name, "internal", tmp_path) as client:
            assert await served_table(client) == table(documented)
            await check_operations(client, documented)


async def test_the_uploader_has_nothing_but_health_in_public(tmp_path: Path) -> None:
    async with running("uploader", "public", tmp_path) as client:
        assert set(await served_table(client)) == set(PATHS)


async def test_the_reader_has_nothing_but_health_inside(tmp_path: Path) -> None:
    async with running("reader", "internal", tmp_path) as client:
        assert set(await served_table(client)) == set(PATHS)


async def test_queues_have_nothing_but_health_and_what_other_nodes_pass_on_inside(
    tmp_path: Path,
) -> None:
    async with running("queues", "internal", tmp_path) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/v1/queues")).status_code == 404


def table_entry(methods: dict[str, set[str]], path: str) -> set[str]:
    return methods.get(re.sub(r"{[^}]*}", "{}", path), set())


async def check_operations(client: httpx.AsyncClient, found: list[Operation]) -> None:
    """Ask for every operation: with a parameter that nobody knows, and with each that is known."""
    documented = table(found)
    for operation in found:
        for method in set(METHODS) - table_entry(documented, operation.path):
            refused = await client.request(method, operation.url)
            assert refused.status_code == 405, (operation.path, method)
            allowed = {word.strip().lower() for word in refused.headers["allow"].split(",")}
            assert allowed == table_entry(documented, operation.path)

        refused = await client.request(operation.method, operation.url, params={"ofset": "1"})
        assert refused.status_code == 400, (operation.path, operation.method)
        if operation.method != "head":
            problem = refused.json()
            assert problem["code"] == "unknown-parameter"
            assert problem["errors"][0]["parameter"] == "ofset"
            known = problem["errors"][0]["detail"].partition("known here: ")[2]
            assert set(filter(None, known.split(", "))) == set(operation.query), operation.path
        for name, schema in operation.query.items():
            answer = await client.request(
                operation.method, operation.url, params={name: a_value(schema)}
            )
            assert "unknown-parameter" not in answer.text, (operation.path, name)


def a_value(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return str(schema["enum"][0])
    return str(schema.get("minimum", schema.get("examples", ["1"])[0]))
