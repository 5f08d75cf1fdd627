"""docs/cli.md: its blocks are run as they stand there."""

from pathlib import Path

from support.command_line import CommandLine
from support.page_run import PageRun
from support.pages import ROOT, steps_of

STEPS = [step for step in steps_of(ROOT / "docs/cli.md") if step.kind in ("sh", "text")]


def test_the_blocks_of_the_guide_do_what_it_says(cli: CommandLine, tmp_path: Path) -> None:
    assert len([step for step in STEPS if step.kind == "sh"]) == 16
    with PageRun(tmp_path / "reader", {}, {"BOTTOMLESS_URL": cli.url}, cli) as reader:
        reader.take(STEPS)
