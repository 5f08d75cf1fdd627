"""Principal: who sends a request, as the gate in front of the public listener found out.

Routes ask for it with `principal_of(scope)`; where identity is off there is one principal,
`LOCAL`, who may do everything in the default tenant.
"""

from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from bottomless.errors import Denied
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.runtime.base.scopes import EVERYTHING, Grants, grants_of

_PRINCIPAL: Final = "bottomless.principal"


@dataclass(frozen=True, slots=True)
class Principal:
    tenant: str
    """Whose streams these are: nothing of another tenant can be seen or named."""
    actor: str
    """The principal's name, for logs and the audit: the id of a key or the subject of a token; no secret."""
    scopes: tuple[str, ...] = (EVERYTHING,)
    """What the credential allows, `operation:pattern`."""
    expires_at: float | None = None
    """When the credential ends by itself, in seconds since 1970."""
    authenticated: bool = True
    """Somebody was asked who they are; not so where identity is off."""

    @property
    def grants(self) -> Grants:
        return grants_of(self.scopes)

    def require(self, operation: str, stream: str) -> None:
        """Ask for more than what the gate asked for by method and path.

        Raises:
            Denied: `forbidden`.
        """
        if not self.grants.allow(operation, stream):
            raise forbidden()


LOCAL: Final = Principal(tenant=TENANT_DEFAULT, actor="local", authenticated=False)


def principal_of(scope: Scope) -> Principal:
    """The principal that sends this request."""
    principal: Principal = scope.get(_PRINCIPAL, LOCAL)
    return principal


def note_principal(scope: Scope, principal: Principal) -> None:
    """Say who sends this request; the gate alone does."""
    scope[_PRINCIPAL] = principal


def forbidden() -> Denied:
    """The answer to who may see what is there, but not do this."""
    return Denied("the credential does not allow this")
