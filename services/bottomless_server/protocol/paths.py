"""Where internal paths begin. Each path stands beside the messages that are sent there."""

from collections.abc import Mapping
from typing import Final

from bottomless.model.names import StreamId, parse_stream_id

INTERNAL: Final = "/internal/v1"
"""Every path that only services ask for begins with it."""
_STREAM_ID: Final = "stream_id"
STREAM: Final = f"{INTERNAL}/streams/{{{_STREAM_ID}}}"
"""The template of all paths of one stream."""
FAULT_POINTS: Final = f"{INTERNAL}/fault-points"
"""Only tests ask for it, and only where a setting says that it is served."""


def of_stream(template: str, stream_id: StreamId) -> str:
    """The path of one stream that a template of a route stands for."""
    return template.replace(f"{{{_STREAM_ID}}}", stream_id)


def stream_id_in(path_params: Mapping[str, str]) -> StreamId:
    """The stream that a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the id of a stream.
    """
    return parse_stream_id(path_params[_STREAM_ID])
