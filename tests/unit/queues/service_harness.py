"""The queues service in this process: a real engine on a directory, a real manifest, clocks of the test."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.asgi import client_of, on_tcp, scope_of
from support.harness import ServiceHarness, StandingClocks
from support.manifest import ManifestHarness
from support.peers import SilentPeer

from bottomless.client.problems import error_from_problem
from bottomless_server.core.principal import LOCAL, Principal
from bottomless_server.manifest.app import ManifestService
from bottomless_server.protocol.peer import Params, PeerAnswer
from bottomless_server.queues.app import create_service
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.queues.service import QueuesService
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.identity.credential_watch import (
    CredentialWatch,
    note_credential_watch,
)

QUEUE = "/v1/queues/jobs"


class ManifestPeer(SilentPeer):
    """The internal listener of a manifest service, without a socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._client = client_of(app)
        self.asked: list[tuple[str, str, Any]] = []

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer:
        del headers, timeout_seconds
        self.asked.append((method, path, body))
        answer = await self._client.request(method, path, params=params, json=body)
        value = answer.json() if answer.content else None
        if answer.status_code >= 400:
            raise error_from_problem(answer.status_code, value)
        return PeerAnswer(answer.status_code, answer.headers, value)

    async def aclose(self) -> None:
        await self._client.aclose()


class Installation:
    """What nodes of queues share: coordination, a bucket, the manifest service."""

    def __init__(self) -> None:
        # Not in between, on a machine that is slow: a test that loses coordination rebuilds it.
        self.stores = ManifestHarness(manifest_generation_check_ms=3_600_000)
        self.manifest = ManifestService(self.stores.context)
        self.clocks = StandingClocks()

    async def start(self) -> "Installation":
        await self.manifest.start()
        return self

    async def create_stream(self, name: str) -> None:
        """Make a stream, for what leaves queues."""
        async with client_of(self.manifest.public) as client:
            answer = await client.put(f"/v1/streams/{name}", json={})
        assert answer.status_code == 201, answer.text

    async def delete_stream(self, name: str) -> None:
        """Delete it."""
        async with client_of(self.manifest.public) as client:
            answer = await client.delete(f"/v1/streams/{name}")
        assert answer.status_code in (202, 204), answer.text

    def node(self, directory: Path, **settings: Any) -> "QueuesHarness":
        """A node of queues with this data directory."""
        return QueuesHarness(self, directory, **settings)


class QueuesHarness(ServiceHarness):
    """One node: its service, and a client of each of its two applications."""

    def __init__(self, installation: Installation, directory: Path, **settings: Any) -> None:
        self.installation = installation
        self.peer = ManifestPeer(installation.manifest.internal)
        small: dict[str, Any] = {"internal_listen": f"unix://{directory}.sock", **settings}
        self.service: QueuesService = create_service(
            QueuesSettings(data_dir=directory, **small),
            installation.stores.coordination,
            manifest=self.peer,
            clocks=installation.clocks.clocks(),
        )
        self.principal = LOCAL
        """Who sends what the client sends."""
        self.watch: CredentialWatch | None = None
        """The watch over their credential."""
        super().__init__(self.service)
        self.client = client_of(wrap(self.as_principal))

    async def as_principal(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_principal(scope, self.principal)
        if self.watch is not None:
            note_credential_watch(scope, self.watch)
        await self.service.public(scope, receive, send)

    async def start(self) -> "QueuesHarness":
        await self.service.start()
        return self

    async def create(self, name: str = "jobs", **config: Any) -> dict[str, Any]:
        answer = await self.client.put(f"/v1/queues/{name}", json=config)
        assert answer.status_code in (200, 201), answer.text
        members: dict[str, Any] = answer.json()
        return members

    async def publish(self, *values: str, name: str = "jobs", **headers: str) -> httpx.Response:
        body = {"messages": [{"value": value} for value in values]}
        path = f"/v1/queues/{name}/messages"
        return await self.client.post(path, json=body, headers=headers)

    async def receive(self, name: str = "jobs", **asked: Any) -> list[dict[str, Any]]:
        answer = await self.client.post(f"/v1/queues/{name}/receive", json=asked)
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages


async def receive_until(node: QueuesHarness, left: asyncio.Event) -> list[Message]:
    """What a client hears to a receive that may wait, and who leaves at some time."""
    body = b'{"max_wait_ms":30000}'
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    heard: list[Message] = []

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        heard.append(message)

    headers = {"content-type": "application/json", "content-length": str(len(body))}
    scope = scope_of(headers, method="POST", path=f"{QUEUE}/receive")
    await node.as_principal(scope, receive, send)
    return heard


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem that an answer is."""
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    members: dict[str, Any] = answer.json()
    return members


def somebody(*scopes: str, tenant: str = "default") -> Principal:
    """A principal with these scopes."""
    return Principal(tenant=tenant, actor="somebody", scopes=scopes)


@asynccontextmanager
async def one_node(directory: Path, **settings: Any) -> AsyncIterator[QueuesHarness]:
    installation = await Installation().start()
    node = await installation.node(directory / "queues", **settings).start()
    yield node
    await node.aclose()
    await installation.manifest.stop()


@asynccontextmanager
async def two_nodes(directory: Path, **settings: Any) -> AsyncIterator[Sequence[QueuesHarness]]:
    """Two nodes of one installation, each with its internal listener on a socket."""
    installation = await Installation().start()
    async with AsyncExitStack() as stack:
        nodes: list[QueuesHarness] = []

        def listening(number: int) -> ASGIApp:
            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                await wrap(nodes[number].service.internal)(scope, receive, send)

            return app

        ports = [await stack.enter_async_context(on_tcp(listening(number))) for number in (0, 1)]
        nodes += [
            installation.node(
                directory / f"node-{number}", queues_url=f"http://127.0.0.1:{port}", **settings
            )
            for number, port in enumerate(ports)
        ]
        for node in nodes:
            await node.start()
        yield nodes
        for node in nodes:
            await node.aclose()
    await installation.manifest.stop()
