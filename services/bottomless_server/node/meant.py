"""Requests that are for one node, and not for whoever has its address by now."""

from typing import Final

from starlette.types import Scope

from bottomless.errors import Code, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless_server.protocol.replica import NODE_HEADER
from bottomless_server.runtime.http.bodies import header

_HEADER: Final = NODE_HEADER.encode()


@guard("the node that is meant")
def require_meant(scope: Scope, mine: NodeId) -> None:
    """Refuse what is for another node, which had this address before: its record would count on a disk
    that is gone, and nobody could go on with what is here in its name. Nor is it asked what that one held,
    or told to give, take or stop what that one owned.

    Raises:
        Unavailable: `peer-unavailable`; nothing was done.
    """
    meant = header(scope, _HEADER)
    if meant not in (None, mine):
        raise Unavailable(
            "another node answers here", code=Code.PEER_UNAVAILABLE, outcome=Outcome.NONE
        )
