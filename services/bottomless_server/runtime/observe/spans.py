"""OpenTelemetry: a span of every request, where it is asked for and installed.

Each service has its own name in a trace, also where several live in one process. Where spans
go, how many and how often is said by the usual variables (OTEL_EXPORTER_OTLP_ENDPOINT, …),
which the library reads. Spans are named by routes; headers and bodies are in none.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Scope

from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.http.tracing import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    FindRoute = Callable[[str], str]


class Spans:
    """The spans of a process."""

    def __init__(self) -> None:
        """Set tracing up for this process.

        Raises:
            CannotStart: the libraries are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.instrumentation import asgi  # noqa: F401, PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            raise CannotStart(
                "BOTTOMLESS_OTEL=1 needs what, in a checkout, `pip install './services[otel]'` installs"
            ) from error
        # One for all services: it holds a bounded number of spans, and drops more.
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def around(self, app: ASGIApp, service: str, route_of: "FindRoute") -> ASGIApp:
        """The application of one service, a span around each of its requests."""
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware  # noqa: PLC0415

        def details(scope: Scope) -> tuple[str, dict[str, str]]:
            route = route_of(scope["path"])
            return f"{scope['method']} {route}", {"http.route": route}

        spanned: ASGIApp = OpenTelemetryMiddleware(
            app,
            default_span_details=details,
            tracer_provider=self._provider(service),
            exclude_spans=["receive", "send"],
        )
        return spanned

    def current(self) -> Trace | None:
        """The span in hand."""
        from opentelemetry import trace  # noqa: PLC0415

        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        flags = f"{context.trace_flags:02x}"
        return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", flags)

    async def aclose(self) -> None:
        """Send what waits."""
        await asyncio.to_thread(self._processor.shutdown)

    def _provider(self, service: str) -> "TracerProvider":
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        resource = Resource.create({"service.name": service})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider
