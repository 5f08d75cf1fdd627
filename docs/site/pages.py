"""An extension of Sphinx: the Markdown pages of a repository become a site, and stay as they are."""

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

TITLED = re.compile(r"(?P<title>.+) <(?P<page>.+)>")


def _toctree(pages: list[str], option: str) -> str:
    return "\n".join(["", "", "```{toctree}", ":hidden:", option, "", *pages, "```", ""])


def _from_the_root(entry: str) -> str:
    titled = TITLED.fullmatch(entry)
    return f"{titled['title']} </{titled['page']}>" if titled else f"/{entry}"


def _add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the front page the groups, and a page that has pages below it those."""
    if docname == app.config.root_doc:
        for caption, entries in app.config.GROUPS.items():
            pages = [_from_the_root(entry) for entry in entries]
            source[0] += _toctree(pages, f":caption: {caption}")
    if docname in app.config.BELOW:
        source[0] += _toctree([app.config.BELOW[docname]], ":glob:")


def _name_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Leave of a link to a folder its words: the site has pages and files, and no folders."""
    page = Path(app.env.doc2path(app.env.docname))
    for link in list(doctree.findall(pending_xref)):
        if link.get("reftype") == "myst" and (page.parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def _add_index(app: Sphinx, failed: Exception | None) -> None:
    """Show the front page to who opens the folder."""
    if failed is None:
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("GROUPS", {}, "env")
    app.add_config_value("BELOW", {}, "env")
    app.connect("source-read", _add_navigation)
    app.connect("doctree-read", _name_folders)
    app.connect("build-finished", _add_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
