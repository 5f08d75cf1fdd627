"""What stands around the applications of a process, outermost first.

    public                            internal
    counting (observe/metrics.py)             counting
    a span (observe/spans.py), if on          a span
    request (http/tracing.py)              request; ids of the caller are taken over
    shell (http/app.py: wrap)             shell
    pages of strangers                the shared secret (peers/internal_secret.py),
      (http/foreign_pages.py)                over TCP
    other origins (http/cors.py)           /metrics
    /openapi.json, and /docs if on    health
    health                            the gate of a service that has not started
    reads in flight                   the service
    identity, rates, the services

An append that nobody has to wait for goes past all of these: `public_lane.py` does for it what they
do. So a layer that is added here has to be added there.

So a scrape, a probe and a preflight need no credential, and nothing of the inside is served
to the public.
"""

from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp

from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.contract import paths_of
from bottomless_server.runtime.http.cors import VARIES, with_origins
from bottomless_server.runtime.http.docs_page import with_docs
from bottomless_server.runtime.http.foreign_pages import Hosts, Pages, without_foreign_pages
from bottomless_server.runtime.http.health import PATHS
from bottomless_server.runtime.http.lane import Lane
from bottomless_server.runtime.http.route_templates import RouteTemplates
from bottomless_server.runtime.http.tracing import Requests
from bottomless_server.runtime.identity.gate import Gate
from bottomless_server.runtime.listener.connections import Connections, HttpBounds, http_bounds
from bottomless_server.runtime.observe.exposition import PATHS as METRICS_PATHS
from bottomless_server.runtime.observe.metrics import Measured, Metrics
from bottomless_server.runtime.observe.spans import Spans
from bottomless_server.runtime.peers.internal_secret import guarded
from bottomless_server.runtime.process.process_limits import (
    connection_count_max,
    raise_descriptor_limit,
)
from bottomless_server.runtime.process.public_lane import PublicLane
from bottomless_server.runtime.process.rate_limits import RateLimits


class Front:
    """One for a process, made before its parts, whose calls it measures."""

    def __init__(self, settings: CommonSettings) -> None:
        self._settings = settings
        self.metrics = Metrics()
        self._spans = Spans() if settings.otel else None
        self._requests = Requests(
            access_log=settings.log_requests,
            span_of=None if self._spans is None else self._spans.current,
        )
        # With identity a name that a stranger made up leads to nothing but 401.
        known_by_name = settings.allowed_hosts or not settings.identity
        self._hosts = Hosts(settings.allowed_hosts) if known_by_name else None
        self.descriptor_limit = raise_descriptor_limit()
        connections = connection_count_max(self.descriptor_limit)
        self.bounds: HttpBounds = http_bounds(settings, connections)

    @property
    def metrics_listen(self) -> str | None:
        """Where `/metrics` is served beside the internal listeners."""
        return self._settings.metrics_listen

    def public(self, app: ASGIApp, name: str) -> ASGIApp:
        """Around what a public listener serves, health included; `name` is that of the service,
        or of all."""
        settings = self._settings
        app = with_docs(app, page=settings.shows_docs)
        app = with_origins(app, settings.allowed_origins)
        app = without_foreign_pages(app, hosts=self._hosts, origins=settings.allowed_origins)
        return self._known(wrap(app), name, trusted=False)

    def lane(self, service: Lane, gate: Gate, limits: RateLimits) -> Lane | None:
        """Put these layers, with identity and rates, around the lane of a service; None where
        requests need what a lane does not give."""
        settings = self._settings
        if not settings.http_lane or self._spans is not None:
            return None
        origins = settings.allowed_origins
        return PublicLane(
            service,
            metrics=self.metrics,
            requests=self._requests,
            pages=Pages(self._hosts, origins),
            gate=gate,
            limits=limits,
            varies=VARIES if origins else (),
        )

    def internal(self, app: ASGIApp, name: str, url: str = "unix://") -> ASGIApp:
        """Around what an internal listener at a url serves, health included.

        Raises:
            CannotStart: it would be open to anybody.
        """
        app = guarded(self.metrics.served(app), url, self._settings)
        return self._known(wrap(app), name, trusted=True)

    def measuring(self, app: ASGIApp, name: str) -> ASGIApp:
        """Around a listener for metrics alone, which asks nobody: they name no tenant or stream."""
        return self._known(wrap(self.metrics.served(app)), name, trusted=True)

    async def aclose(self) -> None:
        if self._spans is not None:
            await self._spans.aclose()

    def _known(self, app: ASGIApp, name: str, *, trusted: bool) -> ASGIApp:
        app = self._requests.around(app, trusted=trusted)
        if self._spans is not None:
            app = self._spans.around(app, name, self.metrics.route_of)
        return self.metrics.around(app)

    async def opened(
        self,
        services: Iterable[object],
        apps: Iterable[ASGIApp],
        listeners: Mapping[str, Connections],
    ) -> None:
        """All services have started: show what they count, by the paths that they serve."""
        for service in services:
            if isinstance(service, Measured):
                self.metrics.add(service)
        self.metrics.watch(listeners)
        paths: set[str] = {*PATHS, *METRICS_PATHS, "/openapi.json", "/docs"}
        for app in apps:
            paths.update(await paths_of(app))
        self.metrics.templates = RouteTemplates(paths)
