"""What it would be to do without guards of super streams."""

from typing import Any, Final

from bottomless_server.ingest.producers import super_steps
from bottomless_server.ingest.producers.super_requests import Begun, Raise
from bottomless_server.protocol.parts import StepAsked


def going_on(*_: Any) -> Begun:
    """Every request goes on, whatever is whole."""
    return Begun.GO_ON


def raised_at_one_partition(_: int, coordinating: int) -> list[Raise]:
    """An epoch is raised where requests are coordinated, and nowhere else."""
    return [Raise(coordinating, coordinates=True)]


def by_the_newest(*given: Any) -> int:
    """Every request goes by the newest layout."""
    newest: int = given[-1]
    return newest


async def all_told(*_: Any) -> bool:
    """A growth waits for no owner."""
    return True


_require_all_layouts: Final = super_steps.require_all_layouts
_asked: Final[list[int]] = [0]


def noting_layout(asked: StepAsked, layout: int) -> None:
    """Note the newest layout as who asks for a step knows it; what follows is asked for the same step."""
    _asked[0] = asked.layout or 0
    _require_all_layouts(asked, layout)


def begun_since(*_: Any) -> int:
    """Every request counts as one that was begun since its super stream grew."""
    return _asked[0]
