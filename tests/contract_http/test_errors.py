"""H23: every problem of the registry is provoked, or it is said who does; none tells too much."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.contract import Answer, problem_of
from support.documents import Documented
from support.server import AllInOne

from bottomless.errors import Code
from bottomless_server.runtime.http.problems import STATUS
from contract_http.provocations import CANARY, ELSEWHERE, PROVOKED, Scene
from contract_http.raw import send
from contract_http.samples import OPERATIONS, sample
from contract_http.seeded import Known
from openapi.bundle import OPENAPI, read

ROOT: Final = Path(__file__).parents[2]
REGISTRY: Final[dict[str, dict[str, Any]]] = {
    entry["code"]: entry for entry in read(OPENAPI / "components/errors.yaml")["x-codes"]
}
INSIDE: Final = re.compile(
    r"Traceback|\.py\b|site-packages|bottomless_server|object at 0x|NoneType|<class|"
    r"\b[A-Z][A-Za-z]+(Error|Exception)\b|\.fragment\b|\.manifest\b|/default/|sk_"
)
"""What only the inside knows: Python's names, paths, keys of objects, secrets."""
ECHOED: Final = {"traceparent"}
"""Headers of a request that the answer repeats, and means to."""

HEADERS: Final = (
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "Content-Encoding",
    "Content-Type",
    "Expect",
    "Group-Generation",
    "Group-Member",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Prefer",
    "Producer-Epoch",
    "Producer-Id",
    "Producer-Seq",
    "Producer-Start",
    "Range",
    "Request-Id",
    "Stream-Expected-Offset",
    "Stream-Filter-Value",
    "Stream-Key",
    "Txn-Number",
    "traceparent",
)


def tells_nothing(server: AllInOne, answer: Answer) -> None:
    """No text of the request, and nothing of what is inside, in a problem's body or headers."""
    said = [value for name, value in answer.headers.items() if name not in ECHOED]
    body = answer.body.decode()
    if '"stream-not-found"' in body:
        # The one name of a path that is said back: a valid one, of a stream that there is not.
        body = re.sub(r'"stream":"[A-Za-z0-9._-]{1,128}"', "", body)
    if '"queue-' in body:
        # So is that of a queue, which more than one may be asked for at once.
        body = re.sub(r'"queue":"[A-Za-z0-9._-]{1,128}"', "", body)
    for text in (body, *said):
        assert CANARY not in text
        assert str(server.data_dir) not in text
        assert not INSIDE.search(text), text


@pytest.mark.parametrize("code", PROVOKED, ids=str)
def test_a_problem_is_what_the_registry_says_and_tells_nothing(
    server: AllInOne, code: Code
) -> None:
    """H23."""
    answer = PROVOKED[code](Scene(server))
    entry = REGISTRY[code]
    problem = problem_of(answer, STATUS[code], code)
    assert problem["title"] == entry["title"]
    assert problem["retryable"] is entry["retryable"]
    assert problem.get("outcome") in (entry["outcome"], None)
    tells_nothing(server, answer)
    assert "Traceback" not in server.log()


def test_every_code_is_provoked_here_or_by_the_test_that_is_named() -> None:
    accounted = [*PROVOKED, *ELSEWHERE]
    assert sorted(accounted) == sorted(Code)
    for code, (file, name) in ELSEWHERE.items():
        text = (ROOT / file).read_text()
        found = next(
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
        told = ast.get_source_segment(text, found) or ""
        status = str(STATUS[code])
        assert f'"{code}"' in told or f"Code.{code.name}" in told or status in told, (code, name)


@pytest.mark.parametrize(
    "text", [CANARY, 'File "/srv/a.py", line 1', "KeyError: 1", "sk_root_00", "/default/0198/root"]
)
def test_an_answer_that_tells_is_found(server: AllInOne, text: str) -> None:
    with pytest.raises(AssertionError):
        tells_nothing(server, Answer(400, {"content-type": "text/plain"}, text.encode()))
    with pytest.raises(AssertionError):
        tells_nothing(server, Answer(400, {"location": text}, b""))


def bodies_with_a_canary(value: Any) -> Iterator[Any]:
    """A body with the canary in place of each of its values and beside each of its members."""
    yield CANARY
    if isinstance(value, dict):
        yield {**value, CANARY: CANARY}
        for name, member in value.items():
            yield from ({**value, name: other} for other in bodies_with_a_canary(member))
    if isinstance(value, list):
        yield [*value, CANARY]
        yield from ([other, *value[1:]] for other in bodies_with_a_canary(value[0]))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_no_refusal_repeats_what_was_sent(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    """H23: whatever place of a request the text stands in."""
    good = sample(operation, known)
    answers: list[Answer] = []

    def ask(target: str, *headers: tuple[str, str], body: bytes | None = good.body) -> None:
        answers.append(send(server.url, good.method, target, headers, body))

    usual = good.headers_with()
    for parameter in operation.parameters:
        name = parameter["name"]
        if parameter["in"] == "query":
            ask(f"{good.path}?{name}={CANARY}", *usual)
            ask(f"{good.path}?{name}=%3C{CANARY}%3E%0a", *usual)
        if parameter["in"] == "path":
            place = operation.path.split("/").index(f"{{{name}}}")
            for text in (CANARY, f"{CANARY}%0d%0a", f"%FF{CANARY}", f"{CANARY}{'x' * 300}"):
                parts = good.path.split("/")
                ask("/".join([*parts[:place], text, *parts[place + 1 :]]), *usual)
    # The name of a parameter is said back where it is plain, so that a slip is seen at once.
    ask(f"{good.path}?%3C{CANARY}%3E={CANARY}", *usual)
    ask(f"{good.path}/{CANARY}", *usual)
    # Together with a parameter that is refused, since most headers alone are no fault.
    for name in HEADERS:
        others = [pair for pair in usual if pair[0] != name]
        ask(good.target("ofset=1"), *others, (name, f"{CANARY}!"))
        if good.method == "GET" or name.startswith(("Producer", "Txn", "Content", "Stream-E")):
            ask(good.target(), *others, (name, f"{CANARY}!"))
    if good.value is not None:
        ask(good.target(), *usual, body=f'{{"{CANARY}": {CANARY}'.encode())
        for value in bodies_with_a_canary(good.value):
            ask(good.target(), *usual, body=json.dumps(value).encode())
    refusals = [answer for answer in answers if answer.status >= 400]
    assert refusals
    for answer in refusals:
        assert answer.status < 500
        tells_nothing(server, answer)
        if answer.body:
            assert Code(answer.json()["code"]) in STATUS
    assert "Traceback" not in server.log()
