"""The command line in tests: in this process where it can be, as a program where it must be."""

import os
import re
import subprocess
import sys
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from bottomless.cli import create_app

app = cache(create_app)
"""The program's commands, which are the same for all tests."""
# Else each run of a command reads the signatures of all commands first, which takes longer.
setattr(testing, "_get_command", cache(get_command))  # noqa: B010

_WAITS: Final = re.compile(
    r"^bottomless: (\S+ op_\w+: |moves under way: \d+; |waiting for the answer |goes on after ).*\n",
    re.MULTILINE,
)
"""What is said of a wait of more than ten seconds, or for the answer to an append of more than two."""


def without_waits(said: str) -> str:
    """What a command says on stderr but of waits, which a machine that stands still may bring about."""
    return _WAITS.sub("", said)


PROGRAM = str(Path(sys.executable).parent / "bottomless")


class CommandLine:
    """`bottomless --url …` against one server."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._directory = directory
        self._names = count()

    def run(self, *words: object, stdin: bytes = b"") -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(app(), ["--url", self.url, *map(str, words)], input=stdin)

    def ok(self, *words: object) -> str:
        """What a command prints that must succeed, and has nothing to complain of. On a machine that
        stands still it may say that it waits for long."""
        result = self.run(*words)
        complaints = without_waits(result.stderr)
        assert (result.exit_code, complaints) == (0, ""), (words, result.stderr)
        return result.stdout

    def json(self, *words: object) -> Any:
        return orjson.loads(self.ok(*words, "-o", "json"))

    def file(self, data: bytes) -> Path:
        path = self._directory / f"input-{next(self._names)}"
        path.write_bytes(data)
        return path

    def stream(self, name: str, *lines: str, options: tuple[str, ...] = ()) -> str:
        """A new stream with these lines."""
        self.ok("create", name, *options)
        if lines:
            self.ok("produce", name, self.file("".join(f"{line}\n" for line in lines).encode()))
        return name

    def start(self, *words: object, **streams: Any) -> subprocess.Popen[bytes]:
        """Start the program; stdout and stderr are pipes unless something else is said."""
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        environment = {**os.environ, "BOTTOMLESS_URL": self.url, "TERM": "xterm"}
        return subprocess.Popen([PROGRAM, *map(str, words)], env=environment, **given)
