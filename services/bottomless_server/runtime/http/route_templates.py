"""The path of the contract that a request means: a label with few values, whatever is asked.

A path may hold names that users gave, which must never become labels of a metric.
"""

from collections.abc import Iterable
from typing import Final

OTHER: Final = "other"
"""The label of a path that nothing serves."""

_ANYTHING: Final = "{}"


class RouteTemplates:
    """Paths like `/v1/streams/{s}/records`, found by the paths that they match."""

    def __init__(self, templates: Iterable[str]) -> None:
        self._root: dict[str, object] = {}
        for template in templates:
            node = self._root
            for part in template.split("/")[1:]:
                word = _ANYTHING if part.startswith("{") else part
                node = node.setdefault(word, {})  # type: ignore[assignment]
            # No part of a path holds a slash, so this is nobody's word.
            node["/"] = template

    def find(self, path: str) -> str:
        """The template of a path; a word that stands there is preferred to a name."""
        node: object = self._root
        for part in path.split("/")[1:]:
            assert isinstance(node, dict)
            node = node.get(part) or node.get(_ANYTHING)
            if node is None:
                return OTHER
        assert isinstance(node, dict)
        template = node.get("/", OTHER)
        assert isinstance(template, str)
        return template
