"""One tab of a real browser, asked over its own protocol: what a page shows, says and fetches."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from support.browser import browsing

WAIT_SECONDS: Final = 120
_EVERY_SECONDS: Final = 0.1


class Tab:
    """The page that is open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._events: list[dict[str, Any]] = []

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(
            f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
        )

    async def until(self, expression: str) -> Any:
        """What an expression of JavaScript comes to, as soon as that is true."""
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            value = await self.value(expression)
            if value:
                return value
            assert asyncio.get_running_loop().time() < deadline, expression
            await asyncio.sleep(_EVERY_SECONDS)

    async def value(self, expression: str) -> Any:
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        # While a page is exchanged for the next, half of it is not there.
        return None if "exceptionDetails" in found else found["result"].get("value")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._count:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._events.append(message)

    def failures(self) -> list[str]:
        """What scripts threw, and what the policy of content forbade."""
        thrown = [e["params"]["exceptionDetails"] for e in self._of("Runtime.exceptionThrown")]
        entries = [e["params"]["entry"] for e in self._of("Log.entryAdded")]
        forbidden = [entry["text"] for entry in entries if entry["source"] == "security"]
        return [json.dumps(each) for each in thrown] + forbidden

    def hosts(self) -> set[str]:
        """Hosts and ports that were asked for anything."""
        urls = [e["params"]["request"]["url"] for e in self._of("Network.requestWillBeSent")]
        return {urlsplit(url).netloc for url in urls if not url.startswith("data:")}

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event.get("method") == method]


@asynccontextmanager
async def a_tab(profile_dir: Path) -> AsyncIterator[Tab]:
    """An empty tab of a browser that knows no host but this machine."""
    with browsing("about:blank", profile_dir) as process:
        said = profile_dir / "DevToolsActivePort"
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while not (said.exists() and said.read_text().count("\n")):
            assert process.poll() is None, "the browser ended"
            assert asyncio.get_running_loop().time() < deadline, "the browser did not start"
            await asyncio.sleep(_EVERY_SECONDS)
        where = f"http://127.0.0.1:{said.read_text().splitlines()[0]}/json"
        async with aiohttp.ClientSession() as session:
            async with session.get(where) as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            address = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
