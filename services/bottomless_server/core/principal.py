"""Principal: who sends a request, and what their credential allows.

Where identity is off there is one principal, `LOCAL`, who may do everything in the default tenant.
"""

from dataclasses import dataclass
from typing import Final

from bottomless.errors import Denied
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.core.not_found import queue_not_found, stream_not_found
from bottomless_server.core.scopes import EVERYTHING, Grants, grants_of


@dataclass(frozen=True, slots=True)
class Principal:
    tenant: str
    """The owner of the streams: nothing of another tenant can be seen or named."""
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

    def require_visible(self, operation: str, stream: str) -> None:
        """Ask for an operation on a stream that no path names, as the gate asks for one in a path.

        Raises:
            NotFound: nothing is allowed on it, so it looks like one that is not there.
            Denied: `forbidden`.
        """
        if not self.grants.allow(operation, stream):
            raise forbidden() if self.grants.show(stream) else stream_not_found()

    def require_queue(self, operation: str, queue: str) -> None:
        """Ask for an operation on a queue that no path names.

        Raises:
            NotFound: `queue-not-found`: nothing is allowed on it, so it looks like one that is not there.
            Denied: `forbidden`.
        """
        if not self.grants.allow(operation, queue):
            raise forbidden() if self.grants.show_queue(queue) else queue_not_found(queue)


LOCAL: Final = Principal(tenant=TENANT_DEFAULT, actor="local", authenticated=False)


def forbidden() -> Denied:
    """The answer to who may see what is there, but not do this."""
    return Denied("the credential does not allow this; GET /v1/whoami shows what it allows")
