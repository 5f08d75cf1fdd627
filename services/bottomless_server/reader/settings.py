"""What an operator may set of the reader."""

from typing import Annotated

from pydantic import Field

from bottomless.model.limits import KIB, MIB
from bottomless_server.runtime.settings import CommonSettings


class ReaderSettings(CommonSettings):
    """Each bound with its reason; all of them can be set as `BOTTOMLESS_…`."""

    reader_cache_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """One budget for all that the process keeps of objects: blocks, indexes and manifest nodes."""
    reader_block_bytes: Annotated[int, Field(ge=4 * KIB, le=64 * MIB, multiple_of=8)] = 4 * MIB
    """Size of a ranged GET. One connection to S3 gives some 40 MB/s whatever the range, so more
    of them in flight help and larger ones do not."""
    reader_fetch_count_max: Annotated[int, Field(ge=1)] = 16
    """GETs in flight in the whole process; their blocks are memory beyond the cache."""
    reader_read_ahead_bytes: Annotated[int, Field(ge=0)] = 16 * MIB
    """What one page or one download may have fetched and not yet used."""
    reader_page_count_max: Annotated[int, Field(ge=1)] = 32
    """Pages that are put together at once; waiting at the tail is not among them."""
    reader_root_ttl_ms: Annotated[int, Field(ge=0)] = 250
    """How long a root pointer is used without asking: how late a trim may be seen. What was
    appended is never seen late, since bounds come from the owner on every read."""
    reader_name_ttl_ms: Annotated[int, Field(ge=0)] = 2_000
    """How long name → stream id and its owner are remembered; less than an owner's lease."""
    page_token_secret: str | None = None
    """Signs page tokens, so that several readers behind one address understand each other's.
    Default: random, which ends tokens with the process."""
