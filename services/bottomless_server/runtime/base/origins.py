"""Origins as browsers send them, so that none is listed that can never match.

A browser writes an origin in one form alone: names in lower case, addresses in their
shortest form, and no port where it is the one of the scheme. `Origin` is compared with the
list letter by letter (http/cors.py, http/foreign_pages.py).
"""

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:\[(?P<ipv6>[0-9a-f:]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
"""A name whose last part is a number: browsers take it for an IPv4 address."""
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_PORT_MAX: Final = 65_535


def is_as_browsers_send_it(origin: str) -> bool:
    """Whether some page can have this origin."""
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    port = found["port"]
    if port is not None and (port == _DEFAULT_PORTS[found["scheme"]] or int(port) > _PORT_MAX):
        return False
    try:
        if found["ipv6"] is not None:
            return IPv6Address(found["ipv6"]).compressed == found["ipv6"]
        name = found["name"]
        return not _NUMBER.fullmatch(name) or str(IPv4Address(name)) == name
    except ValueError:
        return False
