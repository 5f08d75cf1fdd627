"""The doctor: each thing that can be wrong is found, and comes with what to do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.command_line import CommandLine
from support.server import AllInOne
from support.stand_in import OURS, Answer, Asked, standing_in

from bottomless.cli import findings
from bottomless.cli.connection import Choice, Layer
from bottomless.cli.findings import Finding, Status
from bottomless.cli.probe import Probe, Tls
from bottomless_server.settings_check import known_variables

NOW = datetime(2026, 8, 22, tzinfo=UTC)
NEAR = Choice("http://127.0.0.1:8080", "default", None, None, None)
FAR = Choice("http://streams.example", "options", None, None, None)
KNOWN = Choice("http://streams.example", "options", Layer("options", token="sk"), None, None)


def seen(ahead: float | None) -> Probe:
    return Probe(0.01, None if ahead is None else timedelta(seconds=ahead), None)


@pytest.mark.parametrize(
    ("finding", "status", "word"),
    [
        (findings.clock(seen(0.4)), Status.OK, "agree"),
        (findings.clock(seen(42.2)), Status.WARN, "42 s ahead of this one"),
        (findings.clock(seen(-7)), Status.WARN, "7 s behind this one"),
        (findings.clock(seen(None)), Status.SKIP, "says no time"),
        (findings.transport(NEAR, None, NOW), Status.OK, "this machine"),
        (findings.transport(FAR, None, NOW), Status.WARN, "read and change records"),
        (findings.transport(KNOWN, None, NOW), Status.WARN, "read the token"),
        (
            findings.transport(FAR, Tls("TLSv1.3", NOW + timedelta(days=60)), NOW),
            Status.OK,
            "TLSv1.3, the certificate is good until 2026-10-21",
        ),
        (
            findings.transport(FAR, Tls("TLSv1.3", NOW + timedelta(days=3)), NOW),
            Status.WARN,
            "2026-08-25",
        ),
        (findings.versions("1", {"version": "1", "api": "v1"}), Status.OK, "server 1, API v1"),
        (findings.versions("1", {"version": "2", "api": "v1"}), Status.WARN, "this is 1"),
        (findings.versions("1", {"version": "2", "api": "v2"}), Status.FAIL, "API v2"),
        (findings.readiness({"status": "ready"}), Status.OK, "takes traffic"),
        (
            findings.readiness({"services": {"reader": {"status": "report failed"}}}),
            Status.WARN,
            "reader: report failed",
        ),
        (
            findings.readiness({"services": {"uploader": {"failing_streams": 2}}}),
            Status.WARN,
            "2 streams whose upload fails",
        ),
        (
            findings.readiness(
                {"services": {"uploader": {"compaction": {"streams_set_aside": 2}}}}
            ),
            Status.WARN,
            "2 leaderless streams that are set aside",
        ),
        (findings.identity(NEAR, {"authenticated": False}, NOW), Status.OK, "everybody"),
        (findings.identity(FAR, {"authenticated": False}, NOW), Status.WARN, "nobody"),
    ],
)
def test_a_fact_is_judged_and_what_is_not_in_order_has_an_advice(
    finding: Finding, status: Status, word: str
) -> None:
    assert (finding.status, word in finding.sentence) == (status, True)
    assert bool(finding.advice) == (status in (Status.WARN, Status.FAIL))


@pytest.mark.parametrize(("days", "status"), [(None, Status.OK), (60, Status.OK), (2, Status.WARN)])
def test_a_credential_that_ends_soon_is_told(days: int | None, status: Status) -> None:
    ends_at = None if days is None else (NOW + timedelta(days=days)).isoformat()
    who = {"principal": "key:1", "authenticated": True, "tenant": "t", "scopes": ["read"]}
    finding = findings.identity(FAR, {**who, "expires_at": ends_at}, NOW)
    assert (finding.status, finding.sentence[:31]) == (
        status,
        "key:1 of tenant t, may: read" + finding.sentence[28:31],
    )


def test_the_environment_is_told_by_names_and_never_by_values() -> None:
    finding = findings.environment(
        {"BOTTOMLESS_TOKEN": "sk_secret", "https_proxy": "http://secret", "HOME": "/"}, "Python"
    )
    assert finding.status is Status.WARN
    assert "BOTTOMLESS_TOKEN; https_proxy is not followed" in finding.sentence
    assert "secret" not in "".join(finding)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ULR", "URL"),
        ("URI", "URL"),
        ("TOKNE", "TOKEN"),
        ("TOKENFILE", "TOKEN_FILE"),
        ("PROFIL", "PROFILE"),
        ("CAFILE", "CA_FILE"),
    ],
)
def test_a_misspelt_setting_is_told_with_the_one_that_is_meant(name: str, meant: str) -> None:
    misspelt = f"BOTTOMLESS_{name}"
    finding = findings.environment({misspelt: "secret", "BOTTOMLESS_URL": "http://x"}, "Python")
    assert (finding.status, finding.advice) == (
        Status.WARN,
        f"{misspelt}: did you mean BOTTOMLESS_{meant}?",
    )
    assert f"nothing reads {misspelt}" in finding.sentence
    assert "secret" not in "".join(finding)


def test_what_a_server_reads_is_no_misspelt_setting_of_a_client() -> None:
    everything = dict.fromkeys(known_variables(), "x")
    assert findings.environment(everything, "Python").status is Status.OK


def test_a_house_in_order_has_nothing_wrong_and_nothing_left(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    found = cli.json("doctor", "--round-trip")
    assert {one["check"]: one["status"] for one in found} == dict.fromkeys(
        (
            *("environment", "server", "transport", "clock", "version", "readiness"),
            *("identity", "manifest", "reader", "ingest", "queues", "round trip"),
        ),
        "ok",
    )
    assert cli.ok("ls", "doctor-").splitlines()[1:] == []
    assert cli.ok("doctor", "-o", "name") == ""
    assert "round trip" not in cli.ok("doctor")
    told = {one["check"]: one["finding"] for one in found}
    assert told["manifest"].startswith("answers on its one path, in ")
    assert told["reader"].startswith("answers on its 3 paths, in ")


def test_nobody_there_is_one_finding_and_exit_code_1(tmp_path: Path) -> None:
    result = CommandLine("http://127.0.0.1:1", tmp_path).run("doctor")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "fail  server       nothing listens at 127.0.0.1:1 (peer-unavailable)" in result.stdout
    assert "-> start the server, or say with --url where it is" in result.stdout
    assert "ingest" not in result.stdout


def test_another_program_is_told_once(tmp_path: Path) -> None:
    with standing_in(lambda _: (404, b"<html>", {})) as stranger:
        result = CommandLine(stranger.url, tmp_path).run("doctor", "-o", "name")
    assert (result.exit_code, result.stdout) == (1, "version\n")


def misrouting(asked: Asked) -> Answer:
    """A proxy that sends the paths of ingest to a service that does not have them."""
    known: dict[str, Any] = {
        "/v1/version": {"version": "0", "api": "v1"},
        "/readyz?verbose=1": {"status": "ready"},
        "/v1/whoami": {"principal": "anonymous", "authenticated": False, "tenant": "t"},
    }
    if asked.path in known:
        return 200, orjson.dumps(known[asked.path]), OURS
    wrong = "producers" in asked.path or "queues" in asked.path
    code = "not-found" if wrong else "stream-not-found"
    return 404, orjson.dumps({"code": code, "detail": "no", "outcome": "none"}), OURS


def test_a_proxy_that_leads_a_path_elsewhere_is_found(tmp_path: Path) -> None:
    with standing_in(misrouting) as proxy:
        found = CommandLine(proxy.url, tmp_path).run("doctor", "-o", "json")
    assert found.exit_code == 1
    by_check = {one["check"]: one for one in orjson.loads(found.stdout)}
    assert by_check["reader"]["status"] == "ok"
    assert by_check["ingest"]["status"] == "fail"
    assert "/v1/streams/{s}/producers leads to another service" in by_check["ingest"]["finding"]
    assert "let the proxy send it to ingest" in by_check["ingest"]["advice"]
    assert "/v1/queues/{q} leads to another service" in by_check["queues"]["finding"]
    assert "let the proxy send it to queues" in by_check["queues"]["advice"]


def test_a_server_that_does_not_know_the_caller_says_how_to_be_known(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/readyz"):
            return 200, b'{"status":"ready"}', OURS
        return 401, b'{"code":"unauthenticated","detail":"who?"}', OURS

    with standing_in(answer) as server:
        result = CommandLine(server.url, tmp_path).run("doctor")
    assert result.exit_code == 1
    assert "fail  identity     who? (unauthenticated)" in result.stdout
    assert "-> no token was sent; name one with --token-file" in result.stdout


def test_a_round_trip_that_fails_removes_its_stream(running: AllInOne, tmp_path: Path) -> None:
    """An append that is refused in the middle; what is created is deleted all the same."""
    asked: list[str] = []

    def answer(request: Asked) -> Answer:
        asked.append(f"{request.method} {request.path.split('?')[0]}")
        if request.method == "POST" and request.path.endswith("/records"):
            if sum(line.startswith("PUT") for line in asked):
                return 503, b'{"code":"draining","detail":"it stops","outcome":"none"}', OURS
            return 404, b'{"code":"stream-not-found","detail":"no"}', OURS
        if request.method in ("PUT", "DELETE"):
            return 200, b"{}", OURS
        return misrouting(request)

    with standing_in(answer) as server:
        result = CommandLine(server.url, tmp_path).run("doctor", "--round-trip")
    assert "fail  round trip   it stops (draining)" in result.stdout
    (made,) = [line.split("/")[-1] for line in asked if line.startswith("PUT")]
    assert [line.split("/")[-1] for line in asked if line.startswith("DELETE")] == [made]
    assert made.startswith("doctor-")
