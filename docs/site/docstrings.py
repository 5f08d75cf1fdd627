"""An extension of Sphinx: docstrings are Markdown, as the pages are.

Sphinx reads them as reStructuredText, where a name in backticks is something else and a star
begins an emphasis. So what a docstring says is handed on as one block, which MyST then parses.
"""

import re
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$")
ITEM = re.compile(r"^\s*([\w.*]+): (.*)$")


def as_markdown(lines: list[str]) -> list[str]:
    """The same docstring, in which a section such as `Raises:` is a list."""
    made: list[str] = []
    within = False
    for line in lines:
        if found := SECTION.match(line):
            within = True
            made += ["", f"**{found[1]}**", ""]
        elif not line.strip():
            within = False
            made.append("")
        elif within and (item := ITEM.match(line)):
            made.append(f"- `{item[1]}`: {item[2]}")
        else:
            made.append(f"  {line.strip()}" if within else line)
    return made


class Markdown(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        source, line = self.state_machine.get_source_and_line(self.lineno)
        document = new_document(f"{source}:{line}", self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


def _hand_on(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    if any(lines):
        lines[:] = ["", ".. markdown::", "", *(f"   {line}" for line in as_markdown(lines)), ""]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", _hand_on)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
