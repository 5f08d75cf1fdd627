"""Somebody who follows a page of the docs, word for word, in an empty directory.

Only addresses are other ones than on the page, since tests have no fixed ports; and where a
machine has no curl, support/curl.py does what that would do.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bottomless import Client
from support.command_line import PROGRAM, CommandLine
from support.pages import ROOT, Step, pattern_of, steps_of
from support.terminal import Terminal
from support.waiting import until

BLOCK_SECONDS: Final = 300
_ENDS: Final = (0, 130, -signal.SIGINT)
"""Exit codes of what Ctrl-C ended."""
_KILLS: Final = "kill -9 "
"""A page that says so ends something in another way."""
_COMMAND: Final = re.compile(r"bottomless [^|<>$;&]*")
"""A line that needs no shell."""
_LONGER: Final = re.compile(r"\\$|^ |<<", re.MULTILINE)
"""A command of more than one line."""
_EXPORT: Final = re.compile(r'^declare -x (BOTTOMLESS_\w+)="([^"]*)"$', re.MULTILINE)
_CURLRC: Final = "no-progress-meter\nfail-with-body\n"
"""As in a terminal, where its answers are no file; and refusals are failures."""


def _is_shown(step: Step, printed: str) -> bool:
    whole = printed if printed.endswith("\n") else f"{printed}\n"
    return pattern_of(step.text).fullmatch(whole) is not None


class PageRun:
    """A shell, other terminals and a Python, all in one directory."""

    def __init__(
        self,
        directory: Path,
        addresses: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
        cli: CommandLine | None = None,
    ) -> None:
        """Addresses are those of the pages and what they are here.

        With `cli`, a line of nothing but `bottomless …` runs in this process, which is much
        quicker, with what the shell has exported by then.
        """
        self.directory = directory
        self.names: dict[str, Any] = {}
        self._exported: dict[str, str] = {}
        self._addresses = addresses
        self._cli = cli
        self._terminals: list[Terminal] = []
        self._ends = set(_ENDS)
        self._scratch = directory.parent / f"{directory.name}.run"
        self._scratch.mkdir()
        directory.mkdir(exist_ok=True)
        self._environment = self._environment_with(settings or {})
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env=self._environment,
        )

    def _environment_with(self, settings: Mapping[str, str]) -> dict[str, str]:
        programs = self._scratch / "bin"
        programs.mkdir()
        if shutil.which("curl") is None:
            stand_in = programs / "curl"
            program = shlex.join([sys.executable, str(ROOT / "tests/support/curl.py")])
            stand_in.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            stand_in.chmod(0o755)
        (self._scratch / ".curlrc").write_text(_CURLRC)
        kept = {n: v for n, v in os.environ.items() if not n.startswith("BOTTOMLESS_")}
        return {
            **kept,
            "PATH": f"{Path(PROGRAM).parent}:{programs}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(self._scratch / "config"),
            "CURL_HOME": str(self._scratch),
            "PYTHONUNBUFFERED": "1",
            **settings,
        }

    def follow(self, page: Path) -> None:
        """Do everything that the page says, and see what it shows."""
        self.take(steps_of(page))

    def take(self, steps: Iterable[Step]) -> None:
        """Do these steps; each must do what is said of it."""
        printed, all_steps = "", list(steps)
        for step, shown in zip_longest(all_steps, all_steps[1:]):
            try:
                if step.kind == "text" and not step.word:
                    assert _is_shown(step, printed), printed
                elif (step.kind, step.word) == ("sh", "until"):
                    assert shown is not None
                    printed = until(partial(self._does_once, step, shown), what="what is shown")
                else:
                    printed = self._do(step)
            except Exception as error:
                error.add_note(f"at line {step.line} of the page: {step.text}")
                raise

    def _does_once(self, step: Step, shown: Step) -> str | None:
        printed = self._do(step)
        return printed if _is_shown(shown, printed) else None

    def _do(self, step: Step) -> str:
        here = self._here(step.text)
        match step.kind, step.word:
            case "sh", "stays":
                self._terminals.append(Terminal(here, self.directory, self._environment))
                return ""
            case "sh", word:
                if _KILLS in here:
                    # By itself, or by the shell that started it.
                    self._ends |= {-signal.SIGKILL, 128 + signal.SIGKILL}
                return self._as_said(self.run(here, fails=word == "fails"))
            case "text", program:
                found = pattern_of(step.text)
                self._terminal(program).wait_for(found, self._as_said)
                return ""
            case "Ctrl-C", program:
                assert self._terminal(program).interrupt() in _ENDS
                return ""
            case "python", "":
                return self._as_said(self._execute(here))
        assert step.word, f"who runs {step.kind}?"
        (self.directory / step.word).write_text(here)
        return ""

    def run(self, text: str, *, fails: bool = False) -> str:
        """What a block prints in the shell."""
        if self._cli is None or fails or _LONGER.search(text):
            return self._in_shell(text, fails=fails)
        return "".join(
            self._command(self._cli, line)
            if _COMMAND.fullmatch(line)
            else self._in_shell(f"{line}\n", fails=False)
            for line in text.splitlines()
        )

    def _command(self, cli: CommandLine, line: str) -> str:
        outside = dict(os.environ)
        os.environ.clear()
        os.environ.update({**self._environment, **self._exported})
        try:
            with contextlib.chdir(self.directory):
                return cli.ok(*shlex.split(line)[1:])
        finally:
            os.environ.clear()
            os.environ.update(outside)

    def _in_shell(self, text: str, *, fails: bool) -> str:
        files = {name: self._scratch / name for name in ("block", "out", "err", "code", "exports")}
        files["code"].unlink(missing_ok=True)
        files["block"].write_text(text)
        words = {name: shlex.quote(str(path)) for name, path in files.items()}
        assert self._shell.stdin is not None
        # With -e the shell itself ends at the first line that fails, and is asked for its code.
        self._shell.stdin.write(
            f"set {'+e' if fails else '-e'} -uo pipefail; "
            f". {words['block']} >{words['out']} 2>{words['err']} </dev/null; "
            f"echo $? >{words['code']}.new; export -p >{words['exports']}; mv {words['code']}.new {words['code']}\n".encode()
        )
        self._shell.stdin.flush()
        until(
            lambda: files["code"].exists() or self._shell.poll() is not None,
            BLOCK_SECONDS,
            "the end of a block",
        )
        code = self._shell.poll()
        if code is None:
            code = int(files["code"].read_text())
            self._exported = dict(_EXPORT.findall(files["exports"].read_text()))
        out, err = files["out"].read_text(), files["err"].read_text()
        if fails:
            assert code != 0, f"it was not refused: {out}"
            return out + err
        assert (code, err) == (0, ""), f"exit code {code}\n{out}{err}"
        return out

    def _execute(self, text: str) -> str:
        with contextlib.chdir(self.directory), contextlib.redirect_stdout(io.StringIO()) as out:
            exec(text, self.names)
        return out.getvalue()

    def _terminal(self, program: str) -> Terminal:
        # The newest of them: those before it have ended.
        return next(each for each in reversed(self._terminals) if program in each.command)

    def _here(self, text: str) -> str:
        for said, meant in self._addresses.items():
            text = text.replace(said, meant)
        return text

    def _as_said(self, text: str) -> str:
        for said, meant in self._addresses.items():
            text = text.replace(meant, said)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for value in self.names.values():
            if isinstance(value, Client):
                value.close()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(BLOCK_SECONDS)
        ends = [terminal.interrupt() for terminal in reversed(self._terminals)]
        if error is None:
            assert set(ends) <= self._ends
        elif self._terminals:
            error.add_note("\n".join(terminal.shown for terminal in self._terminals)[-4000:])
