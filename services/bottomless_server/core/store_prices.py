"""What an object store asks for: prices, and what requests and stored bytes come to at them.

Prices are those of a bill: dollars for a thousand requests, for a GiB that goes in or out, and for a
GiB that lies there for a month. The default is S3 Standard in us-east-1, as of November 2026, without
what goes out to the internet.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from bottomless.model.limits import GIB

_REQUESTS: Final = 1_000
_PRICE_MAX: Final = 1_000_000.0


class StorePrices(NamedTuple):
    """Dollars."""

    put: float = 0.005
    """The price of 1,000 requests that put an object, or a part of one; those that begin and end an object of
    parts, too."""
    list: float = 0.005
    """The price of 1,000 pages of a listing."""
    get: float = 0.0004
    head: float = 0.0004
    delete: float = 0.0
    """The price of 1,000 requests, each of many objects."""
    written: float = 0.0
    """The price of a GiB that is put."""
    read: float = 0.0
    """The price of a GiB that is got."""
    month: float = 0.023
    """The price of a GiB that is stored for a month."""


REQUESTS: Final = ("put", "list", "get", "head", "delete")
"""What a bill calls requests."""


def parse_prices(text: str) -> StorePrices:
    """Read prices like `put=0.005,get=0.0004`; those that are not named are the default.

    Raises:
        ValueError: it names no price, or one that is no number.
    """
    given: dict[str, float] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, number = word.partition("=")
        if name not in StorePrices._fields or name in given:
            raise ValueError(f"prices are {', '.join(StorePrices._fields)}, each once")
        try:
            given[name] = float(number)
        except ValueError:
            raise ValueError("a price looks like put=0.005, in dollars") from None
        if not 0 <= given[name] <= _PRICE_MAX:
            raise ValueError("a price is from 0 to a million dollars")
    return StorePrices(**given)


def dollars_of_calls(
    prices: StorePrices, requests: Mapping[str, int], *, written: int, read: int
) -> dict[str, float]:
    """Tell what requests came to, by their kind, and the bytes that went in and out with them."""
    of = prices._asdict()
    found = {
        **{one: requests.get(one, 0) * of[one] / _REQUESTS for one in REQUESTS},
        "written": written / GIB * prices.written,
        "read": read / GIB * prices.read,
    }
    return {one: _readable(dollars) for one, dollars in found.items()}


def _readable(dollars: float) -> float:
    """Round away the last digits, which are never exact: nobody wants to read 8.999999999999999e-05."""
    return float(f"{dollars:.12g}")


def dollars_of_month(prices: StorePrices, size: int) -> float:
    """Tell what so many bytes come to that are stored for a month."""
    return size / GIB * prices.month
