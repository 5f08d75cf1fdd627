"""What the listener leans on in uvicorn, all of it, in one place.

The listener is a subclass of a class that uvicorn keeps to itself (decision 28), so an upgrade may
take away what it uses without a word. Whoever raises the bound in services/pyproject.toml runs this
first: it names what is gone or has another shape. The other tests of the listener say whether it
still does what it did.
"""

import ast
import asyncio
import inspect
from collections import deque
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Final

import httptools
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from bottomless_server.runtime import listener

IMPORTED: Final = {
    "uvicorn",
    "uvicorn.config.Config",
    "uvicorn.protocols.http.flow_control.FlowControl",
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol",
    "uvicorn.protocols.http.httptools_impl.RequestResponseCycle",
    "uvicorn.protocols.http.httptools_impl.STATUS_LINE",
    "uvicorn.server.ServerState",
}
CONNECTION: Final[dict[str, list[str] | type]] = {
    # Methods with the names of what they take, attributes with their type.
    "__init__": ["config", "server_state", "app_state", "_loop"],
    "_start_asgi_task": ["cycle", "app"],
    "_unset_keepalive_if_required": [],
    "connection_lost": ["exc"],
    "connection_made": ["transport"],
    "cycle": RequestResponseCycle,
    "data_received": ["data"],
    "eof_received": [],
    "flow": FlowControl,
    "headers": list,
    "loop": asyncio.AbstractEventLoop,
    "on_body": ["body"],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_message_begin": [],
    "on_message_complete": [],
    "on_response_complete": [],
    "on_url": ["url"],
    "parser": httptools.HttpRequestParser,
    "pause_writing": [],
    "pipeline": deque,
    "resume_writing": [],
    "scope": dict,
    "server_state": ServerState,
    "shutdown": [],
    "transport": object,
    "url": bytes,
}
CYCLE: Final[dict[str, list[str] | type]] = {
    "body": bytearray,
    "chunked_encoding": object,
    "disconnected": bool,
    "expected_content_length": int,
    "keep_alive": bool,
    "message_event": asyncio.Event,
    "response_complete": bool,
    "response_started": bool,
    "scope": dict,
    "transport": object,
    "waiting_for_100_continue": bool,
}
FLOW: Final[dict[str, list[str] | type]] = {
    "__init__": ["transport"],
    "pause_reading": [],
    "read_paused": bool,
    "resume_reading": [],
    "write_paused": bool,
}
SERVER: Final[dict[str, list[str] | type]] = {
    "__init__": ["config"],
    "capture_signals": [],
    "main_loop": [],
    "on_tick": ["counter"],
    "serve": ["sockets"],
    "server_state": ServerState,
    "should_exit": bool,
    "startup": ["sockets"],
}
LISTS: Final = {
    "HttpToolsProtocol": CONNECTION,
    "RequestResponseCycle": CYCLE,
    "FlowControl": FLOW,
    "Server": SERVER,
}
CONFIG: Final = {
    "access_log",
    "app",
    "http",
    "lifespan",
    "log_config",
    "proxy_headers",
    "server_header",
    "timeout_graceful_shutdown",
    "timeout_keep_alive",
    "ws",
}

# What a name of ours stands for: in the listener everywhere, or in one class of it.
_STANDS_FOR: Final = {
    "cycle": RequestResponseCycle,
    "self.cycle": RequestResponseCycle,
    "self._answering": RequestResponseCycle,
    "connection": HttpToolsProtocol,
    "self._connection": HttpToolsProtocol,
    "self.flow": FlowControl,
    "self._server": uvicorn.Server,
}
_METHODS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_SUBCLASSES: Final = {
    "BoundedProtocol": HttpToolsProtocol,
    "LaneProtocol": HttpToolsProtocol,
    "HeldFlow": FlowControl,
    "_Server": uvicorn.Server,
}
_REQUEST: Final = b"POST /a?b HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"


class _Transport(asyncio.Transport):
    """Takes everything, sends nothing."""

    def write(self, data: Any) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""

    def pause_reading(self) -> None:
        """Nothing is read anyhow."""

    def resume_reading(self) -> None:
        """Nothing is read anyhow."""


async def _app(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def _asked() -> HttpToolsProtocol:
    """A connection of uvicorn's own to which one request has come."""
    config = uvicorn.Config(
        _app, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False
    )
    config.load()
    connection = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    connection.connection_made(_Transport())
    connection.data_received(_REQUEST)
    return connection


@pytest.fixture
async def things() -> dict[str, Any]:
    connection = await _asked()
    return {
        "HttpToolsProtocol": connection,
        "RequestResponseCycle": connection.cycle,
        "FlowControl": connection.flow,
        "Server": uvicorn.Server(uvicorn.Config(_app)),
    }


def _wrong(thing: Any, shapes: dict[str, list[str] | type]) -> Iterator[str]:
    for name, shape in shapes.items():
        if not hasattr(thing, name):
            yield f"{name} is gone"
        elif isinstance(shape, list):
            found = list(inspect.signature(getattr(thing, name)).parameters)
            if found != shape:
                yield f"{name} takes {found}, not {shape}"
        elif not isinstance(getattr(thing, name), shape):
            yield f"{name} is a {type(getattr(thing, name)).__name__}, not a {shape.__name__}"


@pytest.mark.parametrize("whose", LISTS)
def test_every_name_of_uvicorn_that_the_listener_leans_on_is_there_in_its_shape(
    things: dict[str, Any], whose: str
) -> None:
    wrong = list(_wrong(things[whose], LISTS[whose]))
    assert not wrong, (
        f"uvicorn {uvicorn.__version__} has changed what runtime/listener leans on, so keep the "
        f"bound in services/pyproject.toml. Of {whose}: {'; '.join(wrong)}"
    )


async def test_what_is_held_has_the_shape_that_the_listener_takes_apart() -> None:
    connection = await _asked()
    assert connection.headers == [(b"content-length", b"3")]
    assert connection.scope["headers"] is connection.headers
    assert bytes(connection.cycle.body) == b"abc"
    connection.data_received(_REQUEST)
    # The second request waits: the oldest stands last, with the application that it is for.
    ((waiting, app),) = connection.pipeline
    assert (waiting, app) == (connection.cycle, _app)
    assert httptools_impl.STATUS_LINE[408] == b"HTTP/1.1 408 Request Timeout\r\n"
    assert isinstance(ServerState().default_headers, list)


async def test_a_cycle_gives_out_whatever_bytes_stand_in_its_body() -> None:
    """The listener puts the parser's own bytes there, uvicorn a copy of them."""
    cycle = (await _asked()).cycle
    cycle.body = b"ours"  # type: ignore[assignment]
    assert (await cycle.receive())["body"] == b"ours"  # type: ignore[typeddict-item]


def test_the_configuration_takes_what_the_listener_says() -> None:
    gone = CONFIG - set(inspect.signature(uvicorn.Config).parameters)
    assert not gone, f"uvicorn {uvicorn.__version__} has no {sorted(gone)} in its Config"


def _leaned_on() -> tuple[set[str], dict[type, set[str]]]:
    """What the listener's sources import of uvicorn, and the names they use of each thing of it."""
    imported: set[str] = set()
    used: dict[type, set[str]] = {kind: set() for kind in _SUBCLASSES.values()}
    used[RequestResponseCycle] = set()
    for path in Path(listener.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names if name.name == "uvicorn"}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn"):
                imported |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in _STANDS_FOR:
                used[_STANDS_FOR[ast.unparse(node.value)]].add(node.attr)
            elif isinstance(node, ast.ClassDef) and node.name in _SUBCLASSES:
                # What is overridden is called by uvicorn, under its name and with its arguments.
                used[_SUBCLASSES[node.name]] |= {
                    part.name if isinstance(part, _METHODS) else part.attr
                    for part in ast.walk(node)
                    if isinstance(part, _METHODS)
                    or (isinstance(part, ast.Attribute) and _is_self(part.value))
                }
    return imported, used


def _is_self(node: ast.expr) -> bool:
    return ast.unparse(node) in ("self", "super()")


def test_the_lists_above_name_all_that_the_listener_uses(things: dict[str, Any]) -> None:
    imported, used = _leaned_on()
    assert imported == IMPORTED
    for whose, shapes in LISTS.items():
        theirs = {name for name in used[type(things[whose])] if hasattr(things[whose], name)}
        assert theirs == set(shapes), whose


def test_the_wheel_takes_no_uvicorn_that_was_not_tried() -> None:
    (bound,) = [line for line in requires("bottomless-server") or [] if line.startswith("uvicorn")]
    major, minor, _ = uvicorn.__version__.split(".")
    assert f"<{major}.{int(minor) + 1}" in bound.replace(" ", "")
