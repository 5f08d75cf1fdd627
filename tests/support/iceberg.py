"""A catalog of Iceberg in a file, found as pyiceberg's users have it: by its configuration."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CATALOG = "default"
NAMESPACE = "exports"


@contextmanager
def iceberg_catalog(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The catalog `default`, with the namespace `exports`; tables go there too, unless settings
    name another warehouse."""
    settings = {
        "TYPE": "sql",
        "URI": f"sqlite:///{directory}/catalog.db",
        "WAREHOUSE": f"file://{directory}",
        **(settings or {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name}", value)
        from pyiceberg import catalog
        from pyiceberg.utils.config import Config

        # Read when it is imported, which may have been for another test.
        patch.setattr(catalog, "_ENV_CONFIG", Config())
        made = catalog.load_catalog(CATALOG)
        made.create_namespace(NAMESPACE)
        yield made
