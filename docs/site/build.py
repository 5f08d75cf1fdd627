"""Build the documentation's site: `build.py FOLDER [SOURCE]`, which `./dev docs` calls.

Whatever Sphinx warns of fails the build, after all warnings were said: a link or an anchor that
leads nowhere, a page in no group of the navigation, a docstring that cannot be read.
"""

import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main

HERE = Path(__file__).parent
STRICT = ("--quiet", "--fail-on-warning", "--keep-going")


def build(folder: Path, source: Path) -> int:
    # What is known of pages is made anew each time: a page that was read before, and is not
    # read again, would say its warnings no second time.
    with tempfile.TemporaryDirectory() as read:
        settings = ["--conf-dir", str(HERE), "--doctree-dir", read, "--builder", "html"]
        return main([*STRICT, *settings, str(source), str(folder)])


if __name__ == "__main__":
    folder, source = [*map(Path, sys.argv[1:]), HERE.parents[1]][:2]
    sys.exit(build(folder, source))
