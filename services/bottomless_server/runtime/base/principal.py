"""The principal of a request, as the gate in front of the public listener found out.

Routes ask for it with `principal_of(scope)`. What a principal is: `core/principal.py`.
"""

from typing import Final

from starlette.types import Scope

from bottomless_server.core.principal import LOCAL, Principal

_PRINCIPAL: Final = "bottomless.principal"


def principal_of(scope: Scope) -> Principal:
    """The principal that sends this request."""
    principal: Principal = scope.get(_PRINCIPAL, LOCAL)
    return principal


def note_principal(scope: Scope, principal: Principal) -> None:
    """Say who sends this request; the gate alone does."""
    scope[_PRINCIPAL] = principal
