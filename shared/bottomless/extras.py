"""Extras: what to say when an optional library is missing. Pure."""


def how_to_install(extra: str) -> str:
    """Say how to install the libraries of an extra: from a checkout, since no index has them."""
    return f"in a checkout of Bottomless, pip install './shared[{extra}]'"
