"""A filter says which records a reader asks for, by filter values and keys; on Arrow's columns.

Reader and Spark both choose by this predicate. It knows nothing of what may be left unread: blocks
and indexes only say where no record can be that is asked for, and this has the last word.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bottomless.errors import InvalidRequest
from bottomless.guards import guard
from bottomless.model.limits import FILTER_VALUE_SIZE_MAX, RECORD_KEY_SIZE_MAX
from bottomless.model.record import Columns

FILTER_COUNT_MAX: Final = 16
"""Filter values of one read, and keys of one read."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The records that a read asks for: by their filter value, by their key, or by both together."""

    values: tuple[str, ...] | None = None
    """Filter values, any of which a record may have; None asks for no value. The empty text is one."""
    match_unfiltered: bool = False
    """Whether records without a filter value are asked for as well."""
    keys: tuple[bytes, ...] | None = None
    """Keys, any of which a record must have; None asks for no key."""

    def __post_init__(self) -> None:
        assert self.values or self.keys, "a filter asks for something"
        assert self.values or not self.match_unfiltered

    def may_match(self, columns: Columns) -> bool:
        """Whether a batch that stores these columns can hold a record that is asked for."""
        if self.keys is not None and Columns.KEY not in columns:
            return False
        unfiltered = self.values is None or self.match_unfiltered
        return unfiltered or Columns.FILTER_VALUE in columns

    def mask(self, batch: pa.RecordBatch) -> "pa.Array[Any]":
        """Tell of each record of a batch whether it is asked for: a boolean array without nulls."""
        kept = None
        if self.values is not None:
            kept = _any_of(batch, "filter_value", self.values, or_none=self.match_unfiltered)
        if self.keys is not None:
            of_key = _any_of(batch, "key", self.keys, or_none=False)
            kept = of_key if kept is None else pc.and_(kept, of_key)
        assert kept is not None
        return kept


@guard("the exact filter after the blocks")
def asked_for(wanted: Filter, batch: pa.RecordBatch) -> "pa.Array[Any]":
    """Tell of each record of a batch that was read whether it is given out."""
    return wanted.mask(batch)


def filter_of(
    values: Sequence[str] | None, match_unfiltered: bool, keys: Sequence[bytes] | None
) -> Filter | None:
    """The filter of what was given, each value and key once; None where nothing was.

    Raises:
        InvalidRequest: `match_unfiltered` stands alone, or there are too many values or keys.
    """
    if match_unfiltered and not values:
        raise InvalidRequest("records without a filter value can be asked for beside a value only")
    # Keys have two forms, each of which may be there so often.
    for given, count_max in ((values, FILTER_COUNT_MAX), (keys, 2 * FILTER_COUNT_MAX)):
        if given is not None and len(given) > count_max:
            raise InvalidRequest(f"at most {count_max} can be asked for at once")
    if not values and not keys:
        return None
    return Filter(_each_once(values), match_unfiltered, _each_once(keys))


def parse_filter_value(text: str) -> str:
    """A filter value, as a record may have it.

    Raises:
        InvalidRequest: it is longer.
    """
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidRequest("must be valid Unicode") from None
    if size > FILTER_VALUE_SIZE_MAX:
        raise InvalidRequest(f"must have at most {FILTER_VALUE_SIZE_MAX} bytes of UTF-8")
    return text


def parse_key(text: str) -> bytes:
    """A key that is text, as a record may have it.

    Raises:
        InvalidRequest: it is longer.
    """
    try:
        return _key(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidRequest("must be valid Unicode") from None


def parse_key_base64(text: str) -> bytes:
    """A key in base64, of the common alphabet or of that for URLs, with its padding or without.

    Raises:
        InvalidRequest: it is not base64, or longer than the key of a record.
    """
    common = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        key = b64decode(common + "=" * (-len(common) % 4), validate=True)
    except ValueError:
        raise InvalidRequest("must be base64; a plus sign in a URL is written %2B, or -") from None
    return _key(key)


def _key(key: bytes) -> bytes:
    if len(key) > RECORD_KEY_SIZE_MAX:
        raise InvalidRequest(f"must have at most {RECORD_KEY_SIZE_MAX} bytes")
    return key


def _each_once(given: Sequence[Any] | None) -> tuple[Any, ...] | None:
    # In one order, so that two who ask for the same share what is read for them.
    return tuple(sorted(set(given))) if given else None


def _any_of(
    batch: pa.RecordBatch, name: str, wanted: tuple[Any, ...], *, or_none: bool
) -> "pa.Array[Any]":
    if name not in batch.schema.names:
        return pa.repeat(pa.scalar(or_none), batch.num_rows)
    column = batch.column(name)
    # A null is in no set that has none.
    kept: pa.Array[Any] = pc.is_in(column, value_set=_value_set(wanted, column.type))
    return pc.or_(kept, pc.is_null(column)) if or_none else kept


@lru_cache(maxsize=64)
def _value_set(wanted: tuple[Any, ...], kind: pa.DataType) -> "pa.Array[Any]":
    return pa.array(wanted, kind)
