"""The directory of a run, and its files. What is in it is the truth for every later command.

{utc}-{scenario}/
    resolved-config.json    the scenario, with all that was changed
    stack.json              who runs where: pids, addresses, lives
    logs/ state/            of services; their disks, which go with the stack
    …                       what a run found: see docs/load-tests.md
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from bench.loadtest.scenarios import Scenario
from bench.place import ROOT

DEFAULT: Final = ROOT / "build" / "loadtest"
SOCKETS: Final = "bottomless-load-"
"""So begins the name of the temporary directory with the sockets of a stack."""


class LoadTestError(Exception):
    """Something that ends a command; the message is one sentence for who typed it."""


class Birth(NamedTuple):
    """A process that cannot be mistaken for another one which got its number later."""

    pid: int
    started: float
    """Seconds since 1970, as the kernel says."""

    @classmethod
    def of(cls, pid: int) -> "Birth":
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process, if it is still there."""
        try:
            found = psutil.Process(self.pid)
            same = found.create_time() == self.started
            gone = found.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        return found if same and not gone else None


class RunDirectory:
    """One run of one scenario."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @classmethod
    def create(cls, base: Path, scenario: Scenario) -> "RunDirectory":
        """A new one, with what was there at its begin."""
        utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = base.absolute() / f"{utc}-{scenario.name}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise LoadTestError(f"{path} is there already: wait a second") from None
        except OSError as error:
            raise LoadTestError(f"{path} cannot be made: {error.strerror}") from None
        made = cls(path)
        made.logs.mkdir()
        made.state.mkdir()
        made.write("resolved-config.json", scenario.to_json())
        made.write("git.json", _git())
        made.write("environment.json", _environment())
        return made

    @classmethod
    def newest(cls, base: Path, scenario: str) -> "RunDirectory | None":
        """The one of this scenario that was made last."""
        found = sorted(base.absolute().glob(f"*Z-{scenario}"))
        return cls(found[-1]) if found else None

    def scenario(self) -> Scenario:
        return Scenario.from_json(self.read("resolved-config.json"))

    def read(self, name: str) -> Any:
        """What a file holds.

        Raises:
            LoadTestError: it is not there, or is not JSON.
        """
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            raise LoadTestError(f"{self.path / name} cannot be read") from None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def write(self, name: str, document: Any) -> None:
        """As a whole, so that whoever reads it sees the one before or this one."""
        fresh = self.path / f".{name}.new"
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(self.path / name)

    def add_line(self, name: str, document: Mapping[str, Any]) -> None:
        """One line more of a file of lines."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(document, separators=(",", ":")) + "\n")


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _git() -> dict[str, Any]:
    def said(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        return done.stdout.strip()

    changed = said("status", "--porcelain").splitlines()
    return {
        "commit": said("rev-parse", "HEAD"),
        "branch": said("rev-parse", "--abbrev-ref", "HEAD"),
        "changed_files": changed,
    }


def _environment() -> dict[str, Any]:
    """Of the machine and of this program; of variables only those that Bottomless reads."""
    wanted = {name: value for name, value in os.environ.items() if name.startswith("BOTTOMLESS_")}
    secret = ("TOKEN", "SECRET", "KEY", "PASSWORD")
    return {
        "utc": utc_now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
        "nice": os.nice(0),
        "settings": {
            name: "(not kept)" if any(word in name for word in secret) else value
            for name, value in sorted(wanted.items())
        },
    }
