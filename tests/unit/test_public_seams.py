"""Tests and measurements speak to public names of the product, and reach into private ones nowhere
but where this file says so.

A private name is one with an underscore in front. A line reaches into one if it asks another object
than `self` for it, imports it, patches it by its name, or uses what a base class of the product has.
What a test's own class keeps private counts too: whoever needs it from outside may have it public.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tests", "bench", "docs/examples")
PRODUCT: Final = ("bottomless", "bottomless_server", "pyspark_bottomless")
PATCHING: Final = {"setattr", "getattr", "delattr", "hasattr"}

PUBLIC: Final = {"_replace", "_asdict", "_make", "_fields", "_exit", "_getframe"}
"""The standard library documents them: named tuples, `os` and `sys`."""

LIBRARIES: Final = {
    "bench/servers/valkey.py": "where the package of Valkey keeps its program",
    "bench/spark_scan.py": "the Java virtual machine of Spark's gateway",
    "tests/deploy/composition.py": "where the package of Valkey keeps its program",
    "tests/golden/rabbitmq/encode.py": "types of rstream that its package does not offer",
    "tests/simulation/clockwork.py": "the random numbers of the standard library, from a seed",
    "tests/simulation/loop.py": "the event loop of the standard library, on a virtual clock",
    "tests/spark/test_spark_s3.py": "what py4j has open",
    "tests/support/command_line.py": "a class of typer, to be made faster",
    "tests/support/iceberg.py": "the configuration of pyiceberg, which it reads once",
}
"""Files that reach into libraries, of which the product is no part, and into what."""

LEFT: Final[dict[str, int]] = {
    # The class of a library or of the product is replaced in part, and the other parts go on.
    "tests/contracts/test_redis_coordination.py": 1,
    "tests/simulation/network.py": 6,
    "tests/support/spark_driver.py": 2,
    "tests/unit/manifest/test_key_rebuild.py": 1,
    "tests/unit/protocol/test_tail_messages.py": 1,
    # What is put in the place of a guard that is more than one function.
    "tests/simulation/guards.py": 3,
    "tests/simulation/queue_guards.py": 1,
    "tests/support/removed_guards.py": 2,
    # Fields of another class of the tests.
    "tests/deploy/test_composition.py": 2,
    # Inner state that no answer, metric or number of /readyz?verbose=1 shows yet.
    "tests/journeys/test_client_producer.py": 1,
    "tests/simulation/losses.py": 1,
    "tests/simulation/run.py": 1,
    "tests/support/manifest.py": 1,
    "tests/unit/client/test_client_consumer.py": 1,
    "tests/unit/client/test_client_facade.py": 6,
    "tests/unit/client/test_client_producer_ends.py": 3,
    "tests/unit/ingest/asking.py": 2,
    "tests/unit/ingest/test_append_order.py": 1,
    "tests/unit/ingest/test_dues.py": 1,
    "tests/unit/ingest/test_feed.py": 1,
    "tests/unit/ingest/test_handover.py": 2,
    "tests/unit/ingest/test_names_by_mark.py": 1,
    "tests/unit/ingest/test_names_of_deleted.py": 1,
    "tests/unit/ingest/test_producer_appends.py": 3,
    "tests/unit/ingest/test_producer_model.py": 2,
    "tests/unit/ingest/staging.py": 1,
    "tests/unit/ingest/test_staged.py": 2,
    "tests/unit/ingest/test_staged_leftovers.py": 2,
    "tests/unit/ingest/test_staged_parts.py": 5,
    "tests/unit/manifest/test_clock_trust.py": 1,
    "tests/unit/manifest/test_consumers.py": 3,
    "tests/unit/manifest/test_keys.py": 3,
    "tests/unit/manifest/test_operations.py": 3,
    "tests/unit/manifest/test_rebuild_late_requests.py": 1,
    "tests/unit/reader/test_reader_follow.py": 1,
    "tests/unit/reader/test_reader_forms.py": 1,
    "tests/unit/reader/test_reader_page.py": 1,
    "tests/unit/reader/test_reader_waits.py": 1,
    "tests/unit/runtime/identity/test_identity_keys.py": 1,
    "tests/unit/runtime/identity/test_identity_tokens.py": 2,
    "tests/unit/runtime/test_runtime_known_names.py": 1,
    "tests/unit/runtime/test_runtime_pipelining.py": 3,
    "tests/unit/runtime/test_runtime_protocol.py": 1,
    "tests/unit/uploader/test_uploader_nodes.py": 1,
}
"""How many lines of a file still reach into private names of the product, or of other tests."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def reaching(text: str) -> set[int]:
    """The lines that reach into what is private."""
    nodes = list(ast.walk(ast.parse(text)))
    return {
        line for find in (_asked, _imported, _patched, _inherited, _told) for line in find(nodes)
    }


def _asked(nodes: list[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if not isinstance(node, ast.Attribute) or not private(node.attr):
            continue
        # What a class has of a base that is a test's own is its own as well; see `_inherited`.
        if not _own(node.value) and not _is_super(node.value):
            yield node.lineno


def _own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def _is_super(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value) == "super()"


def _imported(nodes: list[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(private(name) for name in names):
                yield node.lineno


def _patched(nodes: list[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name | ast.Attribute) and _last_name(node.func) in PATCHING:
            named = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            if any(private(part) for name in named for part in str(name).split(".")):
                yield node.lineno
        if isinstance(node.func, ast.Name) and node.func.id == "Replaced":
            named = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
            if any(private(str(name)) for name in named):
                yield node.lineno


def _last_name(function: ast.Name | ast.Attribute) -> str:
    return function.id if isinstance(function, ast.Name) else function.attr


def _inherited(nodes: list[ast.AST]) -> Iterator[int]:
    product = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PRODUCT
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = {re.split(r"[.\[]", ast.unparse(base))[0] for base in node.bases}
            if bases & product:
                yield from _not_own(node)


def _not_own(owner: ast.ClassDef) -> Iterator[int]:
    """Lines of a class that use private names which it does not define."""
    inner = [node for node in ast.walk(owner) if isinstance(node, ast.Attribute)]
    defined = {node.attr for node in inner if isinstance(node.ctx, ast.Store) and _own(node.value)}
    defined |= {
        node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in inner:
        if not private(node.attr):
            continue
        if _is_super(node.value) or (_own(node.value) and node.attr not in defined):
            yield node.lineno


def _told(nodes: list[ast.AST]) -> Iterator[int]:
    """Texts that are programs of their own, as what runs without a guard is."""
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if re.search(r"^(import|from) ", node.value, re.MULTILINE):
            for number, line in enumerate(node.value.splitlines()):
                asked = re.findall(r"(\w+)\.(_\w+)", line)
                if any(private(name) and owner != "self" for owner, name in asked):
                    yield node.lineno + number


def found() -> Counter[str]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return Counter(
        {
            str(path.relative_to(ROOT)): len(lines)
            for path in paths
            if path != Path(__file__)
            and "node_modules" not in path.parts
            and (lines := reaching(path.read_text()))
        }
    )


def test_tests_reach_into_private_names_no_more_than_is_listed() -> None:
    """Where one is mended its number goes down; a new one needs a public seam, not an entry."""
    counted = {path: count for path, count in found().items() if path not in LIBRARIES}
    more = {path: count for path, count in counted.items() if count > LEFT.get(path, 0)}
    assert more == {}


def test_each_file_that_is_said_to_reach_into_a_library_does() -> None:
    assert [path for path in LIBRARIES if not reaching((ROOT / path).read_text())] == []


def test_each_way_to_reach_into_a_private_name_is_seen() -> None:
    ways = {
        "value = thing._hidden": {1},
        "thing().other._hidden = 1": {1},
        "from bottomless.client import _hidden": {1},
        "from bottomless._hidden import thing": {1},
        'patch.setattr(thing, "_hidden", 1)': {1},
        'patch.setattr("a.b._hidden", 1)': {1},
        'Replaced(thing, "_hidden", 1)': {1},
        "from bottomless.client import A\nclass B(A):\n    def c(self): self._d()": {3},
        "from bottomless.client import A\nclass B(A):\n    def _d(self): super()._d()": {3},
        'TEXT = """\nimport a\na._hidden = 1\n"""': {3},
    }
    assert {text: reaching(text) for text in ways} == ways
    seemly = [
        "class A:\n    def b(self): self._c()",
        "named._replace(a=1)",
        "thing.__class__",
        "for _ in range(3): pass",
    ]
    assert [reaching(text) for text in seemly] == [set()] * len(seemly)
