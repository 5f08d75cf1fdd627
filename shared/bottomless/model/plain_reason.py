"""The sentences of the library that checks values, in the words of this project.

Pydantic speaks to programmers: `Input should be a valid integer, unable to parse string as an
integer`. Users see its sentences at the command line, in the answers to their requests and where a
setting is wrong, so what they see is put plainly. Pure.
"""

import re
from typing import Final

_OWN: Final = "Value error, "
"""What the library puts before a sentence of ours."""
_BEGINNING: Final = re.compile(r"(?:Input|String|List|Dictionary|Value) should ")
_AFTERTHOUGHT: Final = re.compile(r", unable to .*|,? after validation, not .*|, got .*")
_PLAIN: Final = (
    (re.compile(r"a valid (?:dictionary or instance of .*|dictionary|mapping)"), "an object"),
    (re.compile(r"a valid list"), "an array"),
    (re.compile(r"a valid boolean"), "true or false"),
    (re.compile(r"a valid integer"), "an integer"),
    (re.compile(r"a valid (string|number)"), r"a \1"),
    (re.compile(r"greater than or equal to"), "at least"),
    (re.compile(r"less than or equal to"), "at most"),
)


def plain_reason(said: str) -> str:
    """Rewrite one sentence of the library's; a sentence of our own stays as it is."""
    if said.startswith(_OWN):
        return said.removeprefix(_OWN)
    if said == "Field required":
        return "must be given"
    if not _BEGINNING.match(said):
        return said
    plain = _AFTERTHOUGHT.sub("", _BEGINNING.sub("must ", said, count=1))
    for pattern, words in _PLAIN:
        plain = pattern.sub(words, plain)
    return plain
