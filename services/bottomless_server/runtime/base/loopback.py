"""Whether an address can be reached from this machine alone."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether who listens on `host` is out of reach of other machines."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
