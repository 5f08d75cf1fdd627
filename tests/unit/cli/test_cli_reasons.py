"""A server that cannot be talked to: what is wrong with host, port, certificate or program."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support.command_line import app as program
from support.stand_in import OURS, Answer, Asked, standing_in
from typer.testing import CliRunner, Result


class Certificate(NamedTuple):
    file: Path
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of this machine's loopback, signed by itself."""
    directory = tmp_path_factory.mktemp("tls")
    key, file = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file, context)


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(program(), ["--url", url, *words])


def said(url: str, *words: str, code: int = 5) -> str:
    """The one line that a command ends with."""
    result = run(url, *(words or ("ls",)))
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr


COMMANDS = [("ls",), ("read", "s"), ("tail", "-f", "s"), ("produce", "s", "/dev/null")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_server_that_is_down_is_told_at_once(words: tuple[str, ...]) -> None:
    line = said("http://127.0.0.1:1", *words)
    assert "nothing listens at 127.0.0.1:1 (peer-unavailable); nothing was changed" in line
    assert "--url" in line


def test_a_name_with_several_addresses_is_down_as_well() -> None:
    assert "nothing listens at localhost:1" in said("http://localhost:1")


def test_a_host_that_is_not_known_is_told() -> None:
    assert "the host of no-such-host.invalid is not known" in said("http://no-such-host.invalid")


def test_a_port_that_hangs_up_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        listening.listen()

        def hang_up() -> None:
            # Until nobody can come any more.
            with suppress(OSError):
                while True:
                    connection, _address = listening.accept()
                    with connection, suppress(OSError):
                        connection.recv(1)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        line = said(f"http://127.0.0.1:{port}")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "hung up" in line


def page(status: int) -> Iterator[str]:
    def answer(_: Asked) -> Answer:
        return status, b"<html>welcome</html>", {"Content-Type": "text/html"}

    with standing_in(answer) as stand_in:
        yield stand_in.url


@pytest.mark.parametrize("status", [200, 301, 404, 405])
@pytest.mark.parametrize("words", [("ls",), ("describe", "s"), ("tail", "-f", "s")], ids=" ".join)
def test_another_program_is_told_from_a_server_of_ours(status: int, words: tuple[str, ...]) -> None:
    for url in page(status):
        line = said(url, *words)
        assert "the answer is not that of a Bottomless server" in line
        assert "another program answers at 127.0.0.1:" in line


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [(401, 6, "no token was sent"), (403, 6, "whoami"), (502, 5, "try again")],
)
def test_what_a_proxy_says_by_itself_is_understood(status: int, code: int, word: str) -> None:
    for url in page(status):
        assert word in said(url, code=code)


def problem(status: int, code: str) -> Answer:
    body = f'{{"status":{status},"code":"{code}","detail":"no","retryable":false,"outcome":"none"}}'
    return status, body.encode(), OURS


def test_a_credential_that_is_not_good_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing_in(lambda _: problem(401, "unauthenticated")) as server:
        assert "no (unauthenticated); nothing was changed; no token was sent" in said(
            server.url, code=6
        )
        monkeypatch.setenv("BOTTOMLESS_TOKEN", "sk_stale")
        line = said(server.url, code=6)
        assert "the token of the environment is not valid" in line
        assert "sk_stale" not in line
        monkeypatch.delenv("BOTTOMLESS_TOKEN")
        file = tmp_path / "config/bottomless/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text('[default]\nurl = "http://elsewhere"\ntoken = "sk"\n')
        file.chmod(0o600)
        assert "the token of profile default goes to its own url only" in said(server.url, code=6)


def test_what_one_may_not_do_is_told_with_how_to_see_what_one_may() -> None:
    with standing_in(lambda _: problem(403, "forbidden")) as server:
        assert "no (forbidden); nothing was changed; `bottomless whoami`" in said(
            server.url, code=6
        )


def test_a_certificate_is_trusted_by_the_file_that_is_named_and_not_otherwise(
    certificate: Certificate, tmp_path: Path
) -> None:
    body = b'{"version":"9","api":"v1","items":[],"next_page_token":null}'
    with standing_in(lambda _: (200, body, OURS), certificate.context) as server:
        url = f"https://127.0.0.1:{server.port}"
        for words in (("ls",), ("tail", "-f", "s")):
            line = said(url, *words)
            assert "is not trusted: self-signed certificate" in line
            assert "--ca-file" in line
        # However the scheme is written, and whichever library carries the call.
        for words in (("ls",), ("tail", "-f", "s"), ("doctor",)):
            result = run(url.replace("https", "HTTPS"), *words)
            assert "is not trusted" in result.output
            assert result.exit_code in (5, 1)
        assert server.asked == []
        result = run(url, "--ca-file", str(certificate.file), "ls", "-o", "json")
        assert (result.exit_code, result.stdout) == (0, "[]\n"), result.stderr
        other = tmp_path / "other.pem"
        other.write_text("no certificate")
        result = run(url, "--ca-file", str(other), "ls")
        assert (result.exit_code, "file of certificates" in result.stderr) == (1, True)


def test_http_and_https_that_are_mixed_up_are_told(certificate: Certificate) -> None:
    with standing_in(lambda _: (200, b"{}", OURS)) as plain:
        assert "does not speak TLS" in said(f"https://127.0.0.1:{plain.port}")
    with standing_in(lambda _: (200, b"{}", OURS), certificate.context) as secure:
        assert "https:// if it speaks TLS" in said(secure.url)
