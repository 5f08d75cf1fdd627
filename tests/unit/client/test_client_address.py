"""What a program takes from its users as a name never becomes the path of another operation."""

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest
from support.guards import remove
from support.raw_server import RawServer, answer, raw_server

import bottomless
from bottomless.client import AsyncClient
from bottomless.client.address import check_id
from bottomless.errors import Code, InvalidRequest, Outcome

NAMED: Final = (
    "name",
    "stream",
    "consumer",
    "producer",
    "producer_id",
    "fragment_id",
    "operation_id",
    "lease_id",
    "key_id",
    "queue",
)
"""What a call's parameter is called that becomes a part of a path, or of a header."""

HOSTILE: Final = ("orders/offsets", "orders%2Foffsets", "..", "", "a b", "a?b", "a#b", "a\nb", "ä")

GOOD: Final[dict[str, Any]] = {
    "offset": 0,
    "records": [],
    "messages": [],
    "queues": [],
    "value": b"",
    "rows": pa.table({"value": [b"x"]}),
    "body": b"",
    "media_type": "application/json",
    "epoch": 0,
    "sequence": 0,
    "spec": "first",
    "timeout_seconds": 1.0,
    "first_offset": 0,
    "next_offset": 0,
    "before_offset": 0,
    "patch": {},
    "expect_home": "0" * 32,
    "on_outage": lambda _: None,
}


def calls() -> list[tuple[str, str]]:
    """Every method of the client, with each parameter of it that is a name."""
    found = []
    for method, function in inspect.getmembers(AsyncClient, callable):
        if method.startswith("_"):
            continue
        names = [each for each in inspect.signature(function).parameters if each in NAMED]
        found += [(method, each) for each in names]
    return found


def test_the_calls_that_take_names_are_found() -> None:
    assert {("read", "name"), ("commit", "consumer"), ("show_key", "key_id")} <= set(calls())
    assert len(calls()) > 30


async def run(client: AsyncClient, method: str, given: dict[str, Any]) -> None:
    """Make the call, whatever kind of thing its answer is."""
    function: Callable[..., Any] = getattr(client, method)
    parameters = inspect.signature(function).parameters.values()
    positional = [
        given.get(each.name, GOOD.get(each.name, "good"))
        for each in parameters
        if each.default is each.empty and each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)
    ]
    named = {
        each.name: given.get(each.name, GOOD.get(each.name, "good"))
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and (each.default is each.empty or each.name in given)
    }
    taken = {each.name for each in parameters if each.default is each.empty}
    named |= {key: value for key, value in given.items() if key not in taken | named.keys()}
    made = function(*positional, **named)
    if isinstance(made, Awaitable):
        await made
    elif isinstance(made, AsyncIterator):
        await anext(made)
    else:
        async with made as entered:
            await anext(entered)


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    async with raw_server(lambda _: answer(value={})) as running:
        yield running


async def test_a_name_that_is_none_is_refused_before_anything_is_sent(server: RawServer) -> None:
    """The checks that were there looked at how one name is encoded. So each call is made here, as
    it is found in the class, with each of its names; a new call is in it by itself."""
    async with AsyncClient(server.url, retry_seconds=0) as client:
        for method, parameter in calls():
            for text in HOSTILE:
                with pytest.raises(InvalidRequest) as caught:
                    await run(client, method, {parameter: text})
                assert caught.value.code is Code.BAD_NAME, (method, parameter, text)
                assert caught.value.outcome is Outcome.NONE
                assert "orders" not in str(caught.value)
            if (
                inspect.signature(getattr(AsyncClient, method)).parameters[parameter].default
                is None
            ):
                continue
            for thing in (None, 7, b"orders"):
                with pytest.raises(TypeError, match=r"must be a str, not (NoneType|int|bytes)"):
                    await run(client, method, {parameter: thing})
    assert server.asked == []


@pytest.mark.parametrize("text", ["op_" + "0" * 32, "root", "0000000000000000-" + "a" * 32])
def test_the_ids_that_servers_give_pass(text: str) -> None:
    assert check_id(text) == text


def test_no_other_module_makes_a_path_of_a_name() -> None:
    """The guard itself: a path that is put together elsewhere would not be checked."""
    package = Path(bottomless.__file__).parent
    made = re.compile(
        r"""f["']/?(v1/|streams/)[^"']*\{|/v1/streams/\{(?!s\}|stream|name)|quote\("""
    )
    found = [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*.py"))
        if made.search(path.read_text())
    ]
    assert set(found) <= {"client/address.py", "spark/java.py", "coordination/embedded.py"}


async def test_without_the_check_a_name_reaches_another_operation(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "names and ids in a path", lambda name: quote(name, safe=""))
    async with AsyncClient(server.url, retry_seconds=0) as client:
        await client.describe("orders/offsets")
    assert [unquote(asked.path) for asked in server.asked] == ["/v1/streams/orders/offsets"]
