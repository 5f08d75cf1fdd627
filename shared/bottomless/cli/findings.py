"""Findings: what a doctor concludes from what it saw. Pure: facts in, a sentence and advice out."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from bottomless.cli.connection import Choice, place_of
from bottomless.model.variables import PREFIX, shown_variable, slip_of

if TYPE_CHECKING:
    from bottomless.cli.probe import Probe, Tls

CLOCK_SECONDS_MAX: Final = 5.0
"""With a larger difference, starts by time and ends of credentials are not where people expect."""

_ENDS_SOON: Final = timedelta(days=14)
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_WELL: Final = frozenset({"running", "ready", "live"})


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Finding(NamedTuple):
    """The result of one check: a sentence, and what to do."""

    check: str
    status: Status
    sentence: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""


def reached(choice: Choice, seen: "Probe") -> Finding:
    """Report that the server answers, how fast, and which place named it."""
    milliseconds = f"{seen.seconds * 1000:.1f} ms"
    said_by = f"the url is from: {choice.url_source}"
    return Finding(
        "server", Status.OK, f"{place_of(choice.url)} answers in {milliseconds}; {said_by}"
    )


def clock(seen: "Probe") -> Finding:
    """Judge by how many seconds the server's clock and this one differ."""
    if seen.clock_ahead is None:
        return Finding("clock", Status.SKIP, "the answer says no time")
    seconds = seen.clock_ahead.total_seconds()
    if abs(seconds) <= CLOCK_SECONDS_MAX:
        return Finding(
            "clock",
            Status.OK,
            f"the server's clock and this one agree within {CLOCK_SECONDS_MAX:.0f} s",
        )
    side = "ahead of" if seconds > 0 else "behind"
    return Finding(
        "clock",
        Status.WARN,
        f"the server's clock is {abs(seconds):.0f} s {side} this one",
        "let both be set over the network (NTP); until then starts by time are off by so much",
    )


def transport(choice: Choice, tls: "Tls | None", now: datetime) -> Finding:
    """Judge whether the way to the server is encrypted, and how long its certificate is valid."""
    if tls is not None:
        left = tls.ends_at - now
        said = f"{tls.version}, the certificate is good until {tls.ends_at:%Y-%m-%d}"
        if left < _ENDS_SOON:
            advice = "renew the certificate, or see why it is not renewed by itself"
            return Finding("transport", Status.WARN, said, advice)
        return Finding("transport", Status.OK, said)
    if _is_near(choice.url):
        return Finding("transport", Status.OK, "plain HTTP, on this machine alone")
    if choice.credential is not None:
        return Finding(
            "transport",
            Status.WARN,
            "plain HTTP: whoever is on the way can read the token",
            "put a proxy with TLS before the server, and name it with https://",
        )
    return Finding(
        "transport",
        Status.WARN,
        "plain HTTP: whoever is on the way can read and change records",
        "put a proxy with TLS before the server, unless the network is private",
    )


def versions(own: str, server: Mapping[str, Any]) -> Finding:
    """Compare the version of the server with that of this program."""
    said = f"server {server['version']}, API {server['api']}; this is {own}"
    if server["api"] != "v1":
        return Finding("version", Status.FAIL, said, "install the release that the server is of")
    if server["version"] != own:
        advice = "they work together as long as the API is the same; of two, take the newer"
        return Finding("version", Status.WARN, said, advice)
    return Finding("version", Status.OK, said)


def readiness(report: Mapping[str, Any]) -> Finding:
    """Judge what the services report about themselves at `/readyz`.

    With a proxy in between these are the services of one process.
    """
    services: Mapping[str, Any] = report.get("services") or {}
    ill = [
        f"{name}: {said['status']}"
        for name, said in services.items()
        if said.get("status", "running") not in _WELL
    ]
    ill += [
        f"{name}: {said['failing_streams']} streams whose upload fails"
        for name, said in services.items()
        if said.get("failing_streams")
    ]
    ill += [
        f"{name}: {count} leaderless streams that are set aside"
        for name, said in services.items()
        if (count := (said.get("compaction") or {}).get("streams_set_aside"))
    ]
    if ill:
        advice = "the report of /readyz?verbose=1 says more; docs/runbooks.md explains it"
        return Finding("readiness", Status.WARN, "; ".join(ill), advice)
    named = f" ({', '.join(services)})" if services else ""
    return Finding("readiness", Status.OK, f"it takes traffic{named}")


def identity(choice: Choice, who: Mapping[str, Any], now: datetime) -> Finding:
    """Report who the caller is to the server, and until when."""
    if not who.get("authenticated"):
        if _is_near(choice.url):
            said = "the server knows nobody by name, and everybody may do everything"
            return Finding("identity", Status.OK, said)
        return Finding(
            "identity",
            Status.WARN,
            "the server authenticates nobody: whoever reaches it may do everything",
            "turn identity on (docs/identity.md), unless the network itself is the guard",
        )
    scopes: Sequence[str] = who.get("scopes") or ()
    said = f"{who['principal']} of tenant {who['tenant']}, may: {' '.join(scopes) or 'nothing'}"
    ends_at = who.get("expires_at")
    if ends_at and datetime.fromisoformat(ends_at) - now < _ENDS_SOON:
        advice = "ask for another credential in time; `bottomless keys create` makes one"
        return Finding("identity", Status.WARN, f"{said}; it ends at {ends_at}", advice)
    return Finding("identity", Status.OK, said)


def environment(variables: Mapping[str, str], system: str) -> Finding:
    """List the settings of this program that are set, and names that are misspelt; never values."""
    named = sorted(name for name in variables if name.upper().startswith(PREFIX))
    shown = " ".join(map(shown_variable, named))
    said = f"{system}; set here: {shown or 'no BOTTOMLESS_ variable'}"
    proxies = sorted(name for name in variables if name.upper() in _PROXIES)
    slips = {name: meant for name in named if (meant := slip_of(name)) is not None}
    if slips:
        wrong = " ".join(map(shown_variable, slips))
        advice = "; ".join(
            f"{shown_variable(name)}: did you mean {meant}?" for name, meant in slips.items()
        )
        return Finding("environment", Status.WARN, f"{said}; nothing reads {wrong}", advice)
    if proxies:
        advice = "name the server, or a reverse proxy before it, with --url"
        return Finding(
            "environment", Status.WARN, f"{said}; {' '.join(proxies)} is not followed", advice
        )
    return Finding("environment", Status.OK, said)


def _is_near(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
