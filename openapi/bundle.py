"""The public contract as one document that stands alone, for tools that take one file.

What the files of the public services share is there once, under one name; a component of
the same name that says something else in two files is refused, since generators make one class
of each name. A component that only leads to another is not kept: some generators drop those.
What operations say to the server alone (`x-…`) is left out.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
OPENAPI: Final = ROOT / "openapi"
PUBLIC: Final = ("ingest", "manifest", "queues", "reader")
BROKER: Final = "broker"
"""Operations of several services that are off unless a setting turns them on. Servers go by what they
say as by the others; the contract that clients are told does not have them."""
METHODS: Final = ("get", "head", "put", "post", "patch", "delete")


@cache
def read(file: Path) -> Any:
    return yaml.load(file.read_text(), yaml.CSafeLoader)


class _Bundle:
    """Collects paths and components of several files."""

    def __init__(self) -> None:
        self.paths: dict[str, dict[str, Any]] = {}
        self.components: dict[str, dict[str, Any]] = {}
        self._places: dict[tuple[str, str], tuple[Path, Any]] = {}

    def add(self, name: str) -> None:
        file = OPENAPI / f"{name}.yaml"
        document = read(file)
        schemes = self.components.setdefault("securitySchemes", {})
        for scheme, value in document["components"].get("securitySchemes", {}).items():
            schemes[scheme] = self._look_up(file, value["$ref"])[1]
        for path, item in document["paths"].items():
            described = self._path_item(file, item)
            for operation in described.values():
                operation.setdefault("security", document.get("security", []))
            self.paths.setdefault(path, {}).update(described)

    def _path_item(self, file: Path, item: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in item:
            file, item = self._look_up(file, item["$ref"])
        # What the methods of a path share is said of each: another file may have the same path.
        shared = item.get("parameters", [])
        found: dict[str, Any] = {}
        for method in METHODS:
            if method in item:
                told = {name: v for name, v in item[method].items() if not name.startswith("x-")}
                told["parameters"] = shared + told.get("parameters", [])
                found[method] = self._moved(file, told)
        return found

    def _look_up(self, file: Path, reference: str) -> tuple[Path, Any]:
        name, _, pointer = reference.partition("#")
        target = (file.parent / name).resolve() if name else file
        value = read(target)
        for part in pointer.split("/")[1:]:
            value = value[part.replace("~1", "/").replace("~0", "~")]
        return target, value

    def _moved(self, file: Path, value: Any) -> Any:
        """A value of a file with its references into this bundle."""
        if isinstance(value, list):
            return [self._moved(file, item) for item in value]
        if not isinstance(value, dict):
            return value
        moved = {
            name: self._moved(file, member) for name, member in value.items() if name != "$ref"
        }
        if isinstance(value.get("$ref"), str):
            moved["$ref"] = self._component(file, value["$ref"])
        return moved

    def _component(self, file: Path, reference: str) -> str:
        where, value = self._look_up(file, reference)
        while isinstance(value, dict) and value.keys() == {"$ref"}:
            reference = value["$ref"]
            where, value = self._look_up(where, reference)
        _, kind, name = reference.partition("#")[2].rsplit("/", 2)
        known = self.components.setdefault(kind, {})
        if name not in known:
            self._places[kind, name] = where, value
            known[name] = None  # A schema may lead to itself.
            known[name] = self._moved(where, value)
        else:
            first, same = self._places[kind, name]
            assert first == where or same == value, f"{kind}/{name} is not the same everywhere"
        return f"#/components/{kind}/{name}"


def bundled(*names: str, secured: bool = True) -> dict[str, Any]:
    """The contract of these services as one document; not secured, it needs no credentials."""
    bundle = _Bundle()
    for name in names:
        bundle.add(name)
    if not secured:
        del bundle.components["securitySchemes"]
        for item in bundle.paths.values():
            for operation in item.values():
                operation["security"] = []
    public = read(OPENAPI / "components/public.yaml")
    used = {
        tag
        for item in bundle.paths.values()
        for operation in item.values()
        for tag in operation["tags"]
    }
    return {
        "openapi": "3.1.0",
        "info": {**public["info"], "version": _version()},
        "tags": [tag for tag in public["tags"] if tag["name"] in used],
        "paths": bundle.paths,
        "components": bundle.components,
    }


def _version() -> str:
    project = tomllib.loads((ROOT / "services/pyproject.toml").read_text())
    return str(project["project"]["version"])
