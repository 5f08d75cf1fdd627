"""Doctor: is everything between here and the server as it should be, and if not, what to do.

It reads, and asks for a stream and a queue that do not exist; only with `--round-trip` does it make one, and
removes it again.
"""

import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.cli import findings
from bottomless.cli.connection import Choice
from bottomless.cli.examples import examples
from bottomless.cli.failures import advice_for
from bottomless.cli.findings import Finding, Status
from bottomless.cli.output import Column, Form, Output, line, show_list
from bottomless.cli.reasons import STRANGER
from bottomless.cli.session import chosen, open_client
from bottomless.cli.temporary import told_what_is_needed
from bottomless.errors import Code, NotFound, StoreError

if TYPE_CHECKING:
    from bottomless.client import Client

PREFIX: Final = "doctor-"
"""The names of the streams that it makes begin with this; any that is left may be removed."""

_SECONDS_MAX: Final = 15.0
"""How long one call may take: a doctor that hangs says nothing."""

_COLUMNS: Final = [Column("CHECK", lambda item: item["check"])]


def add_to(app: typer.Typer) -> None:
    """Add `doctor` to the command line."""
    app.command(
        "doctor", epilog=examples("doctor", "doctor --round-trip", "doctor -o json > report.json")
    )(_doctor)


def _doctor(
    context: typer.Context,
    round_trip: Annotated[
        bool,
        typer.Option(
            "--round-trip", help="Also create a stream, append, read it back and delete it."
        ),
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Check the way to the server, and say what to do about what is wrong; exits with 1 then.

    As names, only the checks that are not in order.
    """
    choice = chosen(context)
    found: list[Finding] = []
    for finding in _examine(context, choice, round_trip=round_trip):
        found.append(finding)
        if output is Form.TABLE:
            _write(finding)
    if output is not Form.TABLE:
        shown = [one for one in found if output is Form.JSON or one.status is not Status.OK]
        show_list(map(_members, shown), _COLUMNS, output)
    if any(finding.status is Status.FAIL for finding in found):
        raise typer.Exit(1)


def _examine(context: typer.Context, choice: Choice, *, round_trip: bool) -> Iterator[Finding]:
    """Findings as they are made; where nobody answers, nothing further is asked."""
    from bottomless.cli.probe import probe  # noqa: PLC0415

    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield findings.environment(os.environ, system)
    with open_client(context, seconds=_SECONDS_MAX) as client:
        try:
            seen = probe(choice.url, choice.ca_file)
        except StoreError as error:
            yield _failed("server", error, choice)
            return
        yield findings.reached(choice, seen)
        yield findings.transport(choice, seen.tls, datetime.now(UTC))
        yield findings.clock(seen)
        try:
            yield findings.versions(version("bottomless"), client.server_version())
        except StoreError as error:
            yield _failed("version", error, choice)
            if error.message == STRANGER:
                return
        yield _answered("readiness", lambda: findings.readiness(client.readiness()), choice)
        yield _answered("identity", lambda: _identity(client, choice), choice)
        for service, questions in _questions(client):
            yield _answered(service, lambda: _routed(service, questions), choice)  # noqa: B023
        if round_trip:
            yield _answered("round trip", lambda: _round_trip(client), choice)


def _answered(check: str, ask: Callable[[], Finding], choice: Choice) -> Finding:
    try:
        return ask()
    except StoreError as error:
        return _failed(check, error, choice)


def _identity(client: "Client", choice: Choice) -> Finding:
    return findings.identity(choice, client.whoami(), datetime.now(UTC))


_Question = tuple[str, Callable[[str], object]]
"""A path, and a call that leads there and names a stream or a queue."""

_NOBODY: Final = (Code.STREAM_NOT_FOUND, Code.QUEUE_NOT_FOUND)
"""What the right service says of a name that nobody has."""


def _questions(client: "Client") -> list[tuple[str, list[_Question]]]:
    """What each service alone can answer."""
    return [
        ("manifest", [("/v1/streams/{s}", client.describe)]),
        (
            "reader",
            [
                ("/v1/streams/{s}/offsets", client.bounds),
                ("GET /v1/streams/{s}/records", lambda name: client.read(name, 0)),
                ("/v1/streams/{s}/fragments", lambda name: list(client.list_fragments(name))),
            ],
        ),
        (
            "ingest",
            [
                (
                    "POST /v1/streams/{s}/records",
                    lambda name: client.append(name, [{"value": "for nobody"}]),
                ),
                (
                    "/v1/streams/{s}/producers",
                    lambda name: client.raise_producer_epoch(name, "doctor"),
                ),
            ],
        ),
        # Not /v1/publish: it is 403 to whoever has nothing to do with queues.
        ("queues", [("/v1/queues/{q}", client.queue)]),
    ]


def _routed(service: str, questions: list[_Question]) -> Finding:
    """Whether a service answers on its own paths, which a proxy may lead elsewhere.

    All are asked about a stream or a queue that nobody has, so the right answer is that it does
    not exist; a path that leads to the wrong service answers that there is no such path.
    """
    nobody = f"{PREFIX}{secrets.token_hex(16)}"
    began = time.perf_counter()
    for path, ask in questions:
        try:
            ask(nobody)
        except NotFound as error:
            if error.code not in _NOBODY:
                said = f"{path} leads to another service, or to none ({error.code})"
                advice = f"let the proxy send it to {service}; deploy/nginx.conf shows how"
                return Finding(service, Status.FAIL, said, advice)
    took = f"{(time.perf_counter() - began) * 1000:.0f} ms"
    paths = "its one path" if len(questions) == 1 else f"its {len(questions)} paths"
    return Finding(service, Status.OK, f"answers on {paths}, in {took}")


def _round_trip(client: "Client") -> Finding:
    """Append a record to a stream of its own, and read it back.

    After a crash the stream is there, alone or with one record, under a name that says whose
    it is; `ls doctor-` shows it and `rm` removes it.
    """
    name, value = f"{PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16)
    with _temporary(client, name):
        began = time.perf_counter()
        stored = client.append(name, [{"value": value}])
        appended = time.perf_counter()
        records = client.read(name, 0, limit=1).records
        ended = time.perf_counter()
    if stored.first_offset != 0 or [record.get("value") for record in records] != [value]:
        said = "what was read is not what was appended"
        return Finding("round trip", Status.FAIL, said, "tell the operator, and keep this server")
    said = (
        f"a record was appended in {(appended - began) * 1000:.0f} ms and read back in "
        f"{(ended - appended) * 1000:.0f} ms; its stream {name} is deleted"
    )
    return Finding("round trip", Status.OK, said)


@contextmanager
def _temporary(client: "Client", name: str) -> Iterator[None]:
    with told_what_is_needed(PREFIX):
        client.create_stream(name, {"labels": {"made-by": "bottomless doctor"}})
    try:
        yield
    finally:
        client.delete_stream(name)


def _failed(check: str, error: StoreError, choice: Choice) -> Finding:
    sentence, advice = advice_for(error, choice)
    return Finding(check, Status.FAIL, f"{sentence} ({error.code})", advice)


def _members(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "status": finding.status,
        "finding": finding.sentence,
        "advice": finding.advice,
    }


def _write(finding: Finding) -> None:
    line(f"{finding.status:<5} {finding.check:<12} {finding.sentence}")
    if finding.advice:
        line(f"{'':<18} -> {finding.advice}")
    # As it is found out: some checks wait for a while.
    sys.stdout.flush()
