"""Every operation of the contract, with its references resolved."""

from typing import Any, NamedTuple

from openapi.bundle import bundled


class Documented(NamedTuple):
    """One operation as its file describes it, with its references resolved."""

    service: str
    operation_id: str
    path: str
    method: str
    parameters: tuple[dict[str, Any], ...]
    media_types: tuple[str, ...]
    """Of its body; empty where it has none."""
    body_required: bool
    statuses: frozenset[str]
    example: Any
    """Of its body, if that is JSON and required."""

    @property
    def places(self) -> dict[str, str]:
        """Examples of what stands in the places of its path."""
        return {
            each["name"]: str(each["example"])
            for each in self.parameters
            if each["in"] == "path" and "example" in each
        }

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"


def _example(body: dict[str, Any]) -> Any:
    content = body["content"].get("application/json", {})
    several = content.get("examples")
    return next(iter(several.values()))["value"] if several else content.get("example")


def documented(*names: str) -> list[Documented]:
    """Every operation of these services."""
    found = []
    for service in names:
        document = bundled(service)

        def resolve(value: Any, document: dict[str, Any] = document) -> Any:
            while "$ref" in value:
                _, _, kind, name = value["$ref"].split("/")
                value = document["components"][kind][name]
            return value

        def parameter(value: Any) -> dict[str, Any]:
            found = resolve(value)
            return {**found, "schema": resolve(found["schema"])}

        for path, item in document["paths"].items():
            for method, operation in item.items():
                body = operation.get("requestBody")
                found.append(
                    Documented(
                        service,
                        operation["operationId"],
                        path,
                        method,
                        tuple(parameter(each) for each in operation["parameters"]),
                        tuple(body["content"]) if body else (),
                        bool(body and body.get("required")),
                        frozenset(operation["responses"]),
                        _example(body) if body and body.get("required") else None,
                    )
                )
    return found
