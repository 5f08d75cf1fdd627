"""Run a command by spark-submit, with this package beside it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyspark
import typer

from bottomless.spark.archive import write_archive
from bottomless.spark.java import ensure_java

_SCRIPT: Final = """\
from bottomless.spark.commands import main

main()
"""
_OURS: Final = frozenset({"master", "submit"})


def submit_job(context: typer.Context, master: str | None, words: Sequence[str]) -> int:
    """Run the command of this context by spark-submit; returns its exit code.

    The url and a token are passed in the environment, so a driver on another machine needs them in
    its own.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    with tempfile.TemporaryDirectory(prefix="bottomless-") as directory:
        script = Path(directory) / "bottomless_job.py"
        script.write_text(_SCRIPT)
        archive = Path(directory) / "bottomless.zip"
        write_archive(archive)
        command = [str(home / "bin" / "spark-submit")]
        command += [] if master is None else ["--master", master]
        command += [*words, "--py-files", str(archive), str(script)]
        assert context.info_name is not None
        command += [_job_of(context), *words_of(context)]
        return subprocess.run(command, check=False).returncode  # noqa: S603  # the user's own words


def _job_of(context: typer.Context) -> str:
    # `python -m bottomless.spark.verify`, or `verify` below `bottomless spark`.
    return str(context.info_name).rpartition(".")[2]


def words_of(context: typer.Context) -> list[str]:
    """List the words of this command's line, without those that are for spark-submit."""
    said = []
    arguments = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _OURS or value is None or value == parameter.default:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        else:
            said += list(_option(parameter.opts[0], value))
    # Options first, so that an argument that looks like one is none.
    return [*said, "--", *arguments]


def _option(name: str, value: object) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _option(name, one)
    elif isinstance(value, bool):
        # Flags are off unless they are given.
        yield name
    else:
        yield f"{name}={value}"
