"""Principal: who sends a request, as the gate in front of the public listener found out.

Routes ask for it with `principal_of(scope)`; where identity is off there is one principal,
`LOCAL`, who may do everything in the default tenant.
"""

from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from bottomless.model.names import TENANT_DEFAULT

_PRINCIPAL: Final = "bottomless.principal"


@dataclass(frozen=True, slots=True)
class Principal:
    tenant: str
    """Whose streams these are: nothing of another tenant can be seen or named."""
    actor: str
    """Who it is, for logs and the audit: the id of a key or the subject of a token; no secret."""
    scopes: tuple[str, ...] = ("*",)
    """What the credential allows, `operation:pattern`."""


LOCAL: Final = Principal(tenant=TENANT_DEFAULT, actor="local")


def principal_of(scope: Scope) -> Principal:
    """Who sends this request."""
    principal: Principal = scope.get(_PRINCIPAL, LOCAL)
    return principal


def note_principal(scope: Scope, principal: Principal) -> None:
    """Say who sends this request; the gate alone does."""
    scope[_PRINCIPAL] = principal
