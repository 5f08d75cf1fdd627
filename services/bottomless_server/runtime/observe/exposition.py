"""The numbers of a process as text for Prometheus, or as JSON for everybody else: the same numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from bottomless.errors import InvalidRequest
from bottomless_server.runtime.http.bodies import negotiate

PATH: Final = "/metrics"
"""Text, or JSON for who asks for that."""
TEXT_PATH: Final = "/metrics/prometheus"
"""Text, whatever is asked for."""
PATHS: Final = frozenset({PATH, TEXT_PATH})

_TEXT: Final = "text/plain"
_JSON: Final = "application/json"


def exposed(scope: Scope, registry: CollectorRegistry) -> Response:
    """The answer to a request for one of the paths."""
    if scope["path"] == PATH and _wants_json(Headers(scope=scope).get("accept")):
        return Response(orjson.dumps(as_json(registry.collect())), media_type=_JSON)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def as_json(families: Iterable[Metric]) -> Mapping[str, Any]:
    """Make one object of all series: by name, as docs/metrics.md has them, what each is and its samples.

    A number that is none (NaN, infinity) is null.
    """
    return {
        "metrics": {
            shown_name(family): {
                "kind": family.type,
                "meaning": family.documentation,
                "samples": _samples(family),
            }
            for family in families
        }
    }


def shown_name(family: Metric) -> str:
    """The name of a series as its samples have it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _samples(family: Metric) -> Sequence[Mapping[str, Any]]:
    return [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for sample in family.samples
    ]


def _wants_json(accept: str | None) -> bool:
    """Whether JSON is liked better than text. A monitor that asks for a form which is not here gets
    text, as it always did."""
    try:
        return negotiate(accept, (_TEXT, _JSON)) == _JSON
    except InvalidRequest:
        return False
