"""Requests that a web page of somebody else has a browser send.

A browser sends what any page asks it to, also to a server on the loopback or in a private
network. Where nobody is asked who they are, that is all the permission there is. Two headers tell
such a request from others, and no page can set them:

- `Host` is the name in the address that the page used. A page can have a name of its own point to
  the loopback (DNS rebinding), and is then of the same origin as the server. So a name counts only
  if no stranger can give it an address: an address itself, `localhost`, a name without a dot, or
  one that the operator names.
- `Origin` is where the page came from. A browser keeps the answer from a page of another origin,
  but the request has been sent by then. So such a request changes nothing, unless the operator
  lists the origin.

A program that is no browser sends no `Origin`, and has an address of the server for its `Host`.
"""

import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, Denied, Fault, InvalidRequest, StoreError
from bottomless_server.runtime.http.problems import request_id_of, send_problem

_HOST: Final = re.compile(rb"(?:\[([0-9a-z:.%_~-]+)\]|([0-9a-z._~%-]*))(?::[0-9]*)?", re.IGNORECASE)
_DEFAULT_PORTS: Final = {b"http": b":80", b"https": b":443"}
_CHANGES_NOTHING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REMEMBERED_COUNT_MAX: Final = 1_024


class Hosts:
    """Names by which a listener may be called, beside those that are always good."""

    def __init__(self, names: Sequence[str]) -> None:
        """Names in full, and `*.name` for all names below one."""
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._ends = (*(name[1:] for name in names if name.startswith("*.")), ".localhost")
        # Each request has one, and nearly always the same.
        self.takes = lru_cache(_REMEMBERED_COUNT_MAX)(self._takes)

    def _takes(self, host: bytes) -> bool | None:
        """Whether a `Host` is good; None if it is not even the form of one."""
        parts = _HOST.fullmatch(host)
        if parts is None:
            return None
        if parts[1] is not None:
            return _is_ipv6(parts[1].decode("ascii"))
        name = parts[2].decode("ascii").lower().removesuffix(".")
        if "." not in name or name in self._names or name.endswith(self._ends):
            return True
        return _is_ipv4(name)


def without_foreign_pages(
    app: ASGIApp, *, hosts: Hosts | None, origins: Sequence[str] = ()
) -> ASGIApp:
    """The application, as pages of strangers cannot use it. Without `hosts` it may be called by
    any name; pages of `origins` may do what programs may."""
    pages = Pages(hosts, origins)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        error = pages.judge(scope)
        if error is None:
            await app(scope, receive, send)
        else:
            await send_problem(send, error, request_id_of(scope))

    return guarded


class Pages:
    """Tells requests that a page of a stranger caused from others."""

    def __init__(self, hosts: Hosts | None, origins: Sequence[str]) -> None:
        """Without `hosts` any name is good; pages of `origins` may do what programs may."""
        self._hosts = hosts
        self._listed = frozenset(origin.encode("ascii") for origin in origins)

    def judge(self, scope: Scope) -> StoreError | None:
        """Why a request is refused, by its method, version and headers; None if it is not."""
        host: bytes | None = None
        origin: bytes | None = None
        host_count = 0
        for name, value in scope["headers"]:
            if name == b"host":
                host, host_count = value, host_count + 1
            elif name == b"origin":
                # Two of them are no origin at all.
                origin = value if origin is None else b"null"
        error = _wrong_host(self._hosts, host, host_count, scope.get("http_version", "1.1"))
        if error is None and scope["method"] not in _CHANGES_NOTHING:
            known = origin is None or origin in self._listed or _same(origin, host or b"")
            error = None if known else origin_not_allowed()
        return error


def host_not_allowed() -> Denied:
    return Denied(
        "the Host of this request is no address, not localhost, has a dot, and is none of "
        "BOTTOMLESS_HOSTS: a web page could have made it up",
        code=Code.HOST_NOT_ALLOWED,
    )


def origin_not_allowed() -> Denied:
    return Denied(
        "a web page of another origin may change nothing here, unless BOTTOMLESS_CORS_ORIGINS "
        "lists that origin",
        code=Code.ORIGIN_NOT_ALLOWED,
    )


def _wrong_host(
    hosts: Hosts | None, host: bytes | None, count: int, http_version: str
) -> StoreError | None:
    if count > 1:
        return _bad_host("the header Host must not be given more than once")
    if host is None:
        # HTTP/1.0 has none, and no browser speaks that.
        return (
            None
            if http_version == "1.0"
            else _bad_host("a request of HTTP/1.1 needs the header Host")
        )
    if hosts is None:
        return None if _HOST.fullmatch(host) else _bad_host("the header Host is malformed")
    taken = hosts.takes(host)
    if taken is None:
        return _bad_host("the header Host is malformed")
    return None if taken else host_not_allowed()


def _bad_host(sentence: str) -> InvalidRequest:
    faults = [Fault(Code.BAD_HEADER, sentence, header="host")]
    return InvalidRequest(sentence, code=Code.BAD_HEADER, faults=faults)


def _same(origin: bytes, host: bytes) -> bool:
    """Whether a page came from the very server that it asks. The scheme is not compared: where TLS
    ends at a proxy, it differs."""
    scheme, _, authority = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    if port is None:
        return False
    return authority.removesuffix(port) == host.lower().removesuffix(port)


def _is_ipv4(text: str) -> bool:
    # Not ipaddress's, which does not know that 127.1 is one too; no name is taken for one here.
    try:
        socket.inet_aton(text)
    except OSError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text.replace("%25", "%", 1))
    except ValueError:
        return False
    return True
