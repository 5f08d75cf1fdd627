"""Public generators make clients of the contract that a running server tells, and those work.

The existing checks held the contract to what is served; none asked whether anybody else's program
can read it. A schema that is valid and rare, `true`, kept every client from being generated.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.server import AllInOne

ROOT: Final = Path(__file__).parents[2]
GENERATORS: Final = ROOT / "tests/generators"
UV: Final = ROOT / ".tool/bin/uv"
SECONDS: Final = 300

PYTHON_CLIENT: Final = """
import json, sys
from bottomless_client import Client
from bottomless_client.api.records import append_records, get_records
from bottomless_client.api.streams import list_streams, put_stream
from bottomless_client.models import Append, Appended, Page, Stream, StreamConfig

client = Client(base_url=sys.argv[1])
created = put_stream.sync("from-python", client=client, body=StreamConfig())
assert isinstance(created, Stream), created
records = [{"json": {"id": 7}, "key": "cust-9"}, {"value": "hello"}]
appended = append_records.sync("from-python", client=client, body=Append(records=records))
assert isinstance(appended, Appended), appended
page = get_records.sync("from-python", client=client, offset="first")
assert isinstance(page, Page), page
names = [item.name for item in list_streams.sync(client=client).items]
print(json.dumps([appended.count, [record.to_dict() for record in page.records], names]))
"""

TYPESCRIPT_CLIENT: Final = """
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2] });
const path = { s: "from-typescript" };
await client.PUT("/v1/streams/{s}", { params: { path }, body: {} });
const appended = await client.POST("/v1/streams/{s}/records", {
  params: { path },
  body: { records: [{ json: { id: 7 }, key: "cust-9" }, { value: "hello" }] },
});
if (appended.data === undefined) throw new Error(JSON.stringify(appended.error));
const page = await client.GET("/v1/streams/{s}/records", {
  params: { path, query: { offset: "first" } },
});
// The types know that lines and events are text, which JSON is not.
if (page.data === undefined || typeof page.data === "string") throw new Error(`${page.error}`);
const listed = await client.GET("/v1/streams");
const names = (listed.data?.items ?? []).map((item) => item.name);
console.log(JSON.stringify([appended.data.count, page.data.records, names]));
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("generated") / "data") as running:
        yield running


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        # Generators and package managers warn there; our own programs say nothing.
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout[-4000:])
    return done.stdout


def told(server: AllInOne, directory: Path) -> Path:
    with server.client() as client:
        contract = directory / "openapi.json"
        contract.write_text(client.get("/openapi.json").text)
    return contract


def check(said: str, stream: str) -> None:
    count, records, names = json.loads(said)
    assert count == 2
    shown: list[dict[str, Any]] = [
        {name: record[name] for name in ("offset", "json", "value", "key") if name in record}
        for record in records
    ]
    assert shown == [
        {"offset": 0, "json": {"id": 7}, "key": "cust-9"},
        {"offset": 1, "value": "hello"},
    ]
    assert stream in names


def test_a_generated_python_client_appends_and_reads(server: AllInOne, tmp_path: Path) -> None:
    """D3: openapi-python-client made none, and without `append_records` once it did."""
    python = tmp_path / "venv/bin/python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=ROOT)
    wanted = GENERATORS / "requirements.txt"
    run(
        *(UV, "pip", "install", "--quiet", "--python", python, "--no-deps"),
        *("--require-hashes", "-r", wanted),
        # Where the settings of uv stand: which certificates it believes.
        cwd=ROOT,
    )
    said = run(
        *(python, "-m", "openapi_python_client", "generate"),
        *("--path", told(server, tmp_path), "--output-path", tmp_path / "client"),
        cwd=tmp_path,
        PATH=f"{python.parent}:{os.environ['PATH']}",
    )
    # All that it leaves out are bodies that are no JSON; of operations, the one that has no other.
    left_out = [line for line in said.splitlines() if "will not be generated" in line]
    assert [line.split()[3] for line in left_out] == ["/v1/streams/{s}/staged"], said
    assert "Cannot parse response" not in said

    script = tmp_path / "use.py"
    script.write_text(PYTHON_CLIENT)
    answer = run(python, script, server.url, cwd=tmp_path, PYTHONPATH=str(tmp_path / "client"))
    check(answer, "from-python")


def test_a_generated_typescript_client_appends_and_reads(server: AllInOne, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed here, which generate and run TypeScript")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(GENERATORS / name, tmp_path)
    run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=tmp_path)
    programs = tmp_path / "node_modules/.bin"
    contract = told(server, tmp_path)
    run(node, programs / "openapi-typescript", contract, "-o", "schema.d.ts", cwd=tmp_path)
    (tmp_path / "use.ts").write_text(TYPESCRIPT_CLIENT)
    options = ("--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")
    run(node, programs / "tsc", *options, "--lib", "es2022,dom", "use.ts", cwd=tmp_path)
    check(run(node, "use.js", server.url, cwd=tmp_path), "from-typescript")
