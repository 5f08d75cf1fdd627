"""How Sphinx makes the documentation's site of the pages of this repository: `./dev docs`.

The pages stay plain Markdown, as the repository shows them. What only the site needs is here:
the groups of the navigation, and how docstrings are read, which are Markdown too.
"""

import sys
import tomllib
from pathlib import Path

from pygments.lexers.data import JsonLexer
from sphinx.highlighting import lexers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

# Every page stands in exactly one of these groups. Sphinx warns of a page that stands in none and
# of an entry that has no page, and `./dev docs` takes a warning for a failure.
GROUPS = {
    "Start": [
        "docs/how-to/start",
        "docs/how-to/kafka-rabbitmq",
        "docs/how-to/from-rabbitmq",
        "docs/how-to/leave-rabbitmq-queues",
        "docs/one-record",
        "docs/glossary",
    ],
    "How to": [
        "All tasks <docs/how-to/README>",
        "docs/how-to/command-line",
        "docs/how-to/produce-python",
        "docs/how-to/produce-tables",
        "docs/how-to/consume",
        "docs/how-to/groups",
        "docs/how-to/super-streams",
        "docs/how-to/queues",
        "docs/how-to/analyse",
        "docs/how-to/filter",
        "docs/how-to/retention",
        "docs/how-to/tiers",
        "docs/how-to/leaderless",
        "docs/how-to/replicas",
        "docs/how-to/keys",
        "docs/how-to/back-up",
        "docs/how-to/watch",
    ],
    "Reference": [
        "docs/appending",
        "docs/reading",
        "docs/leaderless",
        "docs/queues",
        "docs/broker",
        "docs/client",
        "docs/site/python-api",
        "docs/cli",
        "docs/spark",
        "docs/spark-jobs",
        "docs/identity",
    ],
    "Operations": [
        "Where to look <docs/operations>",
        "docs/deployment",
        "docs/runbooks",
        "docs/settings",
        "docs/tiers",
        "docs/replicas",
        "docs/errors",
        "docs/metrics",
        "docs/performance",
        "docs/load-tests",
    ],
    "Inside": [
        "docs/architecture",
        "docs/guarantees",
        "docs/formats",
        "docs/rabbitmq-segments",
        "docs/rabbitmq-queues",
        "docs/message-files",
        "docs/spark-walk",
        "Rooms of the server <services/README>",
        "Rooms of the client <shared/README>",
        "docs/decisions/README",
    ],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}
# Pages that lie below a page of a group, by the pattern of their names.
BELOW = {"docs/decisions/README": "0*"}

project = "Bottomless"
version = tomllib.loads((ROOT / "shared/pyproject.toml").read_text())["project"]["version"]
html_title = f"Bottomless {version}"

root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**", "services/*.md", "shared/*.md"]
exclude_patterns = [".*", "artifacts", "bottomless-data", "build"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "pages", "docstrings"]

# Anchors are those that the repository's own pages have, so that a link works in both places.
myst_heading_anchors = 6
lexers["ndjson"] = JsonLexer()  # type: ignore[no-untyped-call]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autoclass_content = "both"
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88

html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["search-on-disk.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# A copied block is ready to run: without the prompt, and without what the command answered.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
