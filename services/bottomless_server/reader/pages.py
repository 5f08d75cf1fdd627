"""What is asked for and what is answered: the values between routes and page_reader.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bottomless.model.filter import Filter
from bottomless.model.names import Reference, StreamId
from bottomless.model.offset_spec import OffsetSpec
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader.core.arrow_schema import COLUMNS
from bottomless_server.reader.core.locator import Start
from bottomless_server.reader.core.page import Gap
from bottomless_server.reader.core.scan import Scan
from bottomless_server.reader.streams import StreamFacts

PASS_MS: Final = 5_000
"""A follower with a filter is told so often how far it came, while nothing that it asks for comes."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What a reader asks for."""

    spec: OffsetSpec
    limit: int
    size_max: int
    consumer: Reference | None = None
    default: OffsetSpec | None = None
    """Both go with the spec `stored`."""
    until: int | None = None
    answer_limit: int | None = None
    """How many records all pages of an answer may have, from this one on; None: there is no end."""
    wait_ms: int = 0
    count_min: int = 1
    size_min: int = 0
    """What is waited for."""
    strict: bool = False
    """Out of range is an error, and not moved into range."""
    stream_id: StreamId | None = None
    """The only stream that is meant."""
    columns: tuple[str, ...] = COLUMNS
    """Columns of the table, in the order of its schema. What a page may hold is counted over all."""
    whole_chunks: bool = False
    wanted: Filter | None = None
    """The filter; None asks for all records."""
    pass_ms: int | None = None
    """Time in ms after which a page that finds nothing says how far it came; None: it waits its time."""
    patient: bool = True
    """Try again where the object store fails for a moment; not for who tries again anyway."""
    known: Bounds | None = None
    """What the owner said when it was asked for the page before; for a reader that follows."""


@dataclass(frozen=True, slots=True)
class Page:
    """What it gets. All bounds were true at one moment during the request."""

    stream: StreamFacts
    start: Start
    table: pa.Table
    chunks: Sequence[memoryview]
    """Instead of the table, of a page of whole chunks."""
    count: int
    size: int
    held_size: int
    """Bytes that the views in table or chunks keep in memory: the answers of ingest, or blocks."""
    lasting: bool
    """Whatever comes, the same request gets these records."""
    gaps: Sequence[Gap]
    next_offset: int
    """Where this reader continues."""
    first_offset: int
    committed_next: int
    bounds: Bounds
    end_known: bool = True
    """False: nobody answered who knows the end, so that `committed_next` is the least that it is."""
    scan: Scan | None = None
    """Counts of what was looked at, where there was a filter."""

    @property
    def up_to_date(self) -> bool:
        return self.end_known and self.next_offset >= self.committed_next

    @property
    def is_immutable(self) -> bool:
        """Whether the same request always brings these records: a full page of the past."""
        return self.lasting and self.next_offset < self.committed_next
