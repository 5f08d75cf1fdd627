"""Names of files: everything ingest keeps below its data directory.

node.json                                   which data directory this is
lock                                        held by the process that uses it
streams/{stream_id}/checkpoint
streams/{stream_id}/{first_offset:020d}.segment
streams/{stream_id}/{first_offset:020d}.index
streams-aside/{stream_id}.{epoch}           a log that was replaced by another home's, kept for an operator
streams-aside/{stream_id}.{epoch}.published a log that is being removed: another home owns its stream, and object storage holds all of it
streams-aside/{stream_id}.gone              a log of a stream that manifest does not know, kept for an operator
streams-aside/{stream_id}.deleted           a log that is being removed: its stream has a tombstone
staged/{stream_id}/{what it is}.staged      a body of staged batches; producers/commit_plan.py has the name
staged/{stream_id}/{of a producer}.plan     the parts of a commit that needs several
"""

import re
from pathlib import Path

from bottomless.model.names import StreamId

CHECKPOINT_NAME = "checkpoint"
_SEGMENT = re.compile(r"([0-9]{20})\.segment", re.ASCII)


def streams_dir(data_dir: Path) -> Path:
    return data_dir / "streams"


def stream_dir(data_dir: Path, stream_id: StreamId) -> Path:
    return streams_dir(data_dir) / stream_id


def aside_dir(data_dir: Path) -> Path:
    return data_dir / "streams-aside"


def staged_dir(data_dir: Path) -> Path:
    return data_dir / "staged"


def segment_path(directory: Path, first_offset: int) -> Path:
    return directory / f"{first_offset:020d}.segment"


def index_path(directory: Path, first_offset: int) -> Path:
    return directory / f"{first_offset:020d}.index"


def parse_segment_name(name: str) -> int | None:
    """The first offset in a segment's file name, None if it is another file's."""
    match = _SEGMENT.fullmatch(name)
    return None if match is None else int(match[1])
