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

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"


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
                    )
                )
    return found
