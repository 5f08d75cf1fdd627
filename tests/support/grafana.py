"""The shipped dashboards, as tests look at them."""

import json
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[2] / "deploy" / "grafana"


def dashboards() -> dict[str, Any]:
    """Every dashboard, by the name of its file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(DIRECTORY.iterdir())}


def panels(dashboard: Any) -> list[Any]:
    """The panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: Any) -> list[str]:
    """What the panels of a dashboard ask Prometheus."""
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
