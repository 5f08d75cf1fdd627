"""The stream that a request means: a name means something within the tenant that asks.

The only way from the path of a public request to a stream: whoever has a `FullName` has the
tenant of the credential in it, so another tenant's stream cannot even be asked for.
"""

from starlette.types import Scope

from bottomless.model.names import FullName, parse_stream_name
from bottomless_server.runtime.base.principal import principal_of


def full_name_of(scope: Scope, text: str) -> FullName:
    """The stream that a request calls `text`.

    Raises:
        InvalidRequest: `bad-name`.
    """
    return FullName(principal_of(scope).tenant, parse_stream_name(text))
