"""Pages of the docs as their reader follows them: blocks to run, and what they are said to print.

| Block | Is |
|---|---|
| `sh` | run in the reader's shell; it succeeds, and complains of nothing |
| `sh fails` | run there too, and refused: its exit code says so, and what it prints goes to stderr |
| `sh until` | run there, again and again until it prints what comes after it: it looks for what is true a moment later |
| `sh stays` | run in another terminal, where it stays |
| `python` | run; what one block names, the next ones know |
| `python load.py` | a file of that name, and so is any other block with a name |
| `text` | what the block before printed, or (`text tail`) what came in the terminal of `tail` |
| `<!-- Ctrl-C serve -->` | the reader presses it in the terminal of `serve` |

`…` in what is printed stands for anything in a line, and alone in a line for any lines.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_STEP: Final = re.compile(
    r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$|^<!-- Ctrl-C (?P<stopped>\w+) -->$",
    re.MULTILINE | re.DOTALL,
)
_LINES: Final = "…\n"


class Step(NamedTuple):
    """Something that the reader does or looks at."""

    kind: str
    """The language of a block, or `Ctrl-C`."""
    word: str
    """What stands behind it: `stays`, `until`, a file's name, whose terminal."""
    text: str
    line: int


def steps_of(page: Path) -> list[Step]:
    """Everything on a page that is not prose, in its order."""
    return list(_steps(page.read_text()))


def _steps(markdown: str) -> Iterator[Step]:
    for found in _STEP.finditer(markdown):
        line = markdown.count("\n", 0, found.start()) + 1
        if found["stopped"]:
            yield Step("Ctrl-C", found["stopped"], "", line)
        else:
            kind, _, word = found["info"].partition(" ")
            yield Step(kind, word, found["text"], line)


def pattern_of(said: str) -> re.Pattern[str]:
    """What is said to be printed, as an expression for what is."""
    parts = []
    for line in said.splitlines(keepends=True):
        if line == _LINES:
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r".*".join(map(re.escape, line.rstrip().split("…"))) + r"\s*?\n")
    return re.compile("".join(parts))
