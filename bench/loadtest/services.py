"""The services of a stack, as a run sees them: their metrics, their lives, and their keeper."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import httpx

from bench.loadtest.control import Control
from bench.loadtest.place import LoadTestError, RunDirectory

METRICS_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1
START_SECONDS: Final = 600.0
"""A start takes two seconds, and far longer on a machine that does other things."""


class Services:
    """All services of a stack that is up."""

    def __init__(self, run: RunDirectory) -> None:
        stack = run.read("stack.json")
        self._run = run
        self._known: Mapping[str, Mapping[str, Any]] = stack["services"]
        self.control = Control(stack["control"])
        self.names: tuple[str, ...] = tuple(self._known)

    def url(self, name: str) -> str:
        """Of the public listener."""
        return str(self._known[name]["url"])

    async def facts(self) -> dict[str, Any]:
        """Who runs in which life, and what its proxy was asked."""
        found: dict[str, Any] = await self.control.ask("facts")
        return found

    async def metrics(self, name: str) -> dict[str, Any]:
        """All series of a service.

        Raises:
            LoadTestError: it does not answer.
        """
        path = str(self._known[name]["internal"]).removeprefix("unix://")
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, timeout=METRICS_SECONDS) as client:
            try:
                answer = await client.get(
                    "http://internal/metrics", headers={"Accept": "application/json"}
                )
                answer.raise_for_status()
                series: dict[str, Any] = answer.json()["metrics"]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                raise LoadTestError(f"{name} does not show its metrics: {error!r}") from None
        return series

    async def sample(self, at: float) -> None:
        """A line for each service in metrics-30s.jsonl; one that does not answer has an error."""
        facts = await self.facts()

        async def line(name: str) -> dict[str, Any]:
            head = {"at_seconds": round(at, 3), "service": name, "life": facts[name]["life"]}
            try:
                series = await self.metrics(name)
            except LoadTestError as error:
                return {**head, "error": str(error)}
            shown = {
                one: {"kind": series[one]["kind"], "samples": series[one]["samples"]}
                for one in series
            }
            return {**head, "metrics": shown}

        for found in await asyncio.gather(*map(line, self.names)):
            self._run.add_line("metrics-30s.jsonl", found)

    async def until_running(self, *names: str, seconds: float = START_SECONDS) -> None:
        """Return when all of these have said that they are ready.

        Raises:
            LoadTestError: one has ended, or the time is over.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    facts = await self.facts()
                    states = {name: facts[name]["state"] for name in names}
                    ended = [name for name, state in states.items() if state == "ended by itself"]
                    if ended:
                        raise LoadTestError(f"{ended[0]} has ended by itself; its log says why")
                    if all(state == "runs" for state in states.values()):
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise LoadTestError(f"{', '.join(names)}: not ready after {seconds:.0f} s") from None
