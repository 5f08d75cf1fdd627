"""What this process knows of the public interface: the table of the contract, loaded once.

A path is looked up once for each request, however many ask what it is.
"""

from typing import Final

import orjson
from starlette.types import Scope

from bottomless_server.runtime.http.contract import endpoints_text
from bottomless_server.runtime.http.endpoint_table import EndpointTable, FoundPath

_FOUND: Final = "bottomless.found"

TABLE: Final = EndpointTable(orjson.loads(endpoints_text()))


def find(scope: Scope) -> FoundPath:
    """What the path of a request is."""
    found: FoundPath | None = scope.get(_FOUND)
    if found is None:
        found = scope[_FOUND] = TABLE.find(scope["path"])
    return found


def services_of(scope: Scope) -> tuple[str, ...]:
    """The services to ask for a request, best first."""
    return find(scope).services(scope["method"])
