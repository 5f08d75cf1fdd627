"""Instructions of taking an append, by callgrind: what other load on the machine cannot move."""

import re
import shutil
import subprocess
import sys
from typing import Final

from bench.figures import Figure
from bench.place import ROOT, Missing
from bench.turns import Row, Runner, Stage
from bench.wire import http

COUNT: Final = 10
"""Appends that are counted."""
FORMS: Final = {
    "Arrow, 1 MiB": (http.ARROW, 10_000),
    "frames, 1 MiB": (http.FRAMES, 10_000),
    "Arrow, 64 KiB": (http.ARROW, 620),
    "JSON, one record": (http.JSON, 1),
}


def _counted(content_type: str, records: int) -> Runner:
    command = [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        "--callgrind-out-file=/dev/null",
    ]
    program = [sys.executable, "-m", "bench.instructions", content_type, str(records), str(COUNT)]

    def run(_: float) -> Figure:
        done = subprocess.run(
            [*command, *program], cwd=ROOT, capture_output=True, text=True, check=False
        )
        found = re.search(r"Collected : ([0-9]+)", done.stderr)
        if done.returncode or found is None:
            raise RuntimeError(f"callgrind: {done.stderr[-300:]}")
        each = int(found[1]) / COUNT
        extra = {"instructions an append": each, "instructions a record": each / records}
        return Figure(units=COUNT, seconds=int(found[1]) / 1e9, extra=extra)

    return run


def _set_up(stage: Stage) -> None:
    for name, (content_type, records) in FORMS.items():
        with stage.side(name):
            if shutil.which("valgrind") is None:
                raise Missing("valgrind is not installed (Debian: apt-get install valgrind)")
            stage.runners[name] = _counted(content_type, records)
    stage.notes.append(
        "Counted in user space, from a whole body to its validated records; a second stands for "
        "10^9 instructions."
    )


ROWS: Final = (
    Row(
        "instructions",
        "Instructions from a body to validated records (callgrind)",
        "appends",
        (),
        _set_up,
        warms_up=False,
        rounds_max=1,
    ),
)
