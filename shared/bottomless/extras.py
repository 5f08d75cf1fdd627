"""Extras: what to say where a library is missing that not everybody needs. Pure."""


def how_to_install(extra: str) -> str:
    """How to get the libraries of one of our extras; what exists is the checkout, no index."""
    return f"in a checkout of Bottomless, pip install './shared[{extra}]'"
