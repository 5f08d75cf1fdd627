"""Super streams by their names, for commands that take the name of a stream: the server knows which it is."""

from typing import TYPE_CHECKING

from bottomless.errors import Denied, NotFound

if TYPE_CHECKING:
    from bottomless.client import Client


def is_super_stream(client: "Client", name: str) -> bool:
    """Ask whether a super stream has this name; false if that may not be seen."""
    try:
        client.describe_super_stream(name)
    except (NotFound, Denied):
        return False
    return True
