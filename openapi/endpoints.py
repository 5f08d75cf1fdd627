"""What each operation says to the server, checked and compiled.

Every operation of openapi/*.yaml has these members:

    x-service  the service that answers: ingest, manifest, queues, reader, inside also uploader; every
    x-reach    the listeners that answer it: public, internal, every-listener

and a public one has three more:

    x-scope    what a credential must allow: `open` (none is asked for), `any-credential`, or
               {operations: [read, describe], where: stream}: one of them on the stream of
               the path; where: queue (the queue of the path), somewhere (any stream or queue),
               everywhere (all of the tenant), installation.
               `hides: false` where forbidden may be said of a stream that nobody may see
    x-audit    what the audit calls it; none; by-route, where the handler decides
    x-rate     what limits of rates count: requests, append (its body too); none; by-route, where
               the handler counts what the request stands for
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from bottomless_server.core.scopes import Operation
from bottomless_server.runtime.http.endpoint_table import QUEUE, STREAM, EndpointTable, Rate, Reach
from openapi.bundle import BROKER, METHODS, OPENAPI, PUBLIC, read

INTERNAL: Final = "internal"
_EVERY: Final = "every"
_EVERY_LISTENER: Final = "every-listener"
_BELOW: Final = "/v1/"
_INSIDE: Final = "/internal/"
_SERVICE_OF_THE_REST: Final = "manifest"
"""Who says of a path below /v1/ that there is nothing, where no service has all around it."""

_MEMBERS: Final = {
    "x-service": "one of ingest, manifest, queues, reader, every; inside also uploader",
    "x-reach": "one of public, internal, every-listener",
    "x-scope": "open, any-credential, or {operations: [...], where: stream}",
    "x-audit": "the name of an action, none, or by-route",
    "x-rate": "one of none, requests, append, by-route",
}
_UPLOADER: Final = "uploader"
"""The service that nobody outside asks for anything."""
_OF_ALL: Final = ("x-service", "x-reach")
_ACTION: Final = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z]+)*")
_GRAVE: Final = {Operation.DELETE, Operation.ADMIN, Operation.QUEUE_DELETE}


class Refused(ValueError):
    """What is wrong with the contract, and where."""


class Said(NamedTuple):
    """One operation as a file has it."""

    file: str
    path: str
    method: str
    members: dict[str, Any]
    """Its own, with the `security` that holds for it."""

    def refused(self, why: str) -> Refused:
        name = self.members.get("operationId", "without an operationId")
        return Refused(f"openapi/{self.file}.yaml: {self.method} {self.path} ({name}): {why}")


def compiled() -> dict[str, Any]:
    """What servers load as `contract/endpoints.json`.

    Raises:
        Refused: an operation does not say all that it must, or contradicts itself.
    """
    documents = {name: read(OPENAPI / f"{name}.yaml") for name in (*PUBLIC, BROKER, INTERNAL)}
    return compile_documents(documents, read(OPENAPI / "components/public.yaml")["x-pages"])


def compile_documents(documents: dict[str, Any], pages: list[dict[str, Any]]) -> dict[str, Any]:
    """As `compiled`, of documents by the names of their files."""
    endpoints: dict[tuple[str, str], dict[str, Any]] = {}
    ids: dict[str, tuple[str, str]] = {}
    for said in operations(documents):
        _check_members(said)
        if said.file == INTERNAL:
            continue
        key = said.path, said.method
        endpoint = _endpoint(said)
        if endpoints.setdefault(key, endpoint) != endpoint:
            raise said.refused("it is an operation of two files")
        if ids.setdefault(endpoint["id"], key) != key:
            raise said.refused("another operation has its operationId")
        endpoints[key] = endpoint
    table = {
        "default": {"service": _SERVICE_OF_THE_REST, "below": _BELOW},
        "pages": pages,
        "endpoints": list(endpoints.values()),
    }
    try:
        EndpointTable(table)
    except ValueError as error:
        raise Refused(str(error)) from error
    return table


def internal_services(documents: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The service of every internal operation, by path and method."""
    return {
        (said.path, said.method): said.members["x-service"]
        for said in operations({INTERNAL: documents[INTERNAL]})
    }


def operations(documents: dict[str, Any]) -> Iterator[Said]:
    """Every operation of documents, by the names of their files, as its file has it."""
    for file, document in documents.items():
        for path, given in document["paths"].items():
            item = given
            if "$ref" in given:
                name, _, pointer = given["$ref"].partition("#/paths/")
                item = read(OPENAPI / name)["paths"][pointer.replace("~1", "/")]
            for method in METHODS:
                if method in item:
                    members = {"security": document.get("security", []), **item[method]}
                    yield Said(file, path, method.upper(), members)


def _check_members(said: Said) -> None:
    inside = said.file == INTERNAL
    needed = _MEMBERS if not inside or said.members.get("x-reach") != INTERNAL else _OF_ALL
    for member in needed:
        if member not in said.members:
            raise said.refused(f"{member} is missing; it is {_MEMBERS[member]}")
    for member in said.members:
        if member.startswith("x-") and member not in needed:
            raise said.refused(f"{member} says nothing here; known are {', '.join(needed)}")
    service, reach = said.members["x-service"], said.members["x-reach"]
    everywhere = (service == _EVERY, reach == _EVERY_LISTENER)
    if service not in (*PUBLIC, _EVERY) and not (inside and service == _UPLOADER):
        raise said.refused(f"x-service is {_MEMBERS['x-service']}")
    if not inside and said.file != BROKER and service not in (said.file, _EVERY):
        raise said.refused(f"x-service is {service}, but this is the file of {said.file}")
    if reach not in (INTERNAL if inside else "public", _EVERY_LISTENER) or len({*everywhere}) > 1:
        raise said.refused(f"x-reach {reach} of x-service {service} does not go into this file")
    if not any(everywhere) and said.path.startswith(_INSIDE) != inside:
        raise said.refused(f"paths below {_INSIDE} are internal, and no others are")


def _endpoint(said: Said) -> dict[str, Any]:
    service = said.members["x-service"]
    on, operations, hides = _scope(said)
    rate = said.members["x-rate"]
    if rate not in {*Rate}:
        raise said.refused(f"x-rate is {_MEMBERS['x-rate']}")
    counts = rate not in (Rate.NONE, Rate.BY_ROUTE)
    if counts != said.path.startswith(_BELOW):
        raise said.refused(f"requests below {_BELOW} are counted, and no others are: see x-rate")
    if rate == Rate.APPEND and "requestBody" not in said.members:
        raise said.refused("x-rate append counts a body, and it has none")
    audit = _audit(said, operations)
    return {
        "id": said.members["operationId"],
        "method": said.method,
        "path": said.path,
        "service": None if service == _EVERY else service,
        "on": on,
        "operations": operations,
        "hides": hides,
        "audit": audit,
        "rate": rate,
    }


def _scope(said: Said) -> tuple[str, list[str], bool]:
    """On what which operations must be allowed, and whether a stream is hidden from who has none."""
    scope = said.members["x-scope"]
    if (scope == Reach.OPEN) != (said.members["security"] == []):
        raise said.refused("x-scope is open where security is [], and nowhere else")
    if scope == Reach.OPEN:
        if said.path.startswith(_BELOW):
            raise said.refused(f"nothing below {_BELOW} is open")
        return scope, [], True
    if scope == Reach.ANY_CREDENTIAL:
        if said.method not in ("GET", "HEAD") or "{" in said.path:
            raise said.refused("any-credential may read what has no name, and nothing else")
        return scope, [], True
    if not isinstance(scope, dict) or not {"operations", "where"} <= {*scope} <= _SCOPE:
        raise said.refused(f"x-scope is {_MEMBERS['x-scope']}")
    operations, on = scope["operations"], scope["where"]
    if on not in {*Reach} - {Reach.OPEN, Reach.ANY_CREDENTIAL}:
        raise said.refused("x-scope: where is stream, queue, somewhere, everywhere or installation")
    if not operations or not {*operations} <= {*Operation}:
        raise said.refused(f"x-scope: operations are some of {', '.join(Operation)}")
    if on == Reach.STREAM and f"{{{STREAM}}}" not in said.path:
        raise said.refused(f"x-scope is about a stream, and the path has no {{{STREAM}}}")
    if on == Reach.QUEUE and f"{{{QUEUE}}}" not in said.path:
        raise said.refused(f"x-scope is about a queue, and the path has no {{{QUEUE}}}")
    if any(one.startswith("queue-") for one in operations) != (on == Reach.QUEUE) and (
        on in (Reach.STREAM, Reach.QUEUE)
    ):
        raise said.refused("x-scope: operations on queues go with where: queue, and no others do")
    return on, operations, scope.get("hides", True)


_SCOPE: Final = {"operations", "where", "hides"}


def _audit(said: Said, operations: list[str]) -> str | None:
    audit = said.members["x-audit"]
    if not isinstance(audit, str) or not (audit == "by-route" or _ACTION.fullmatch(audit)):
        raise said.refused(f"x-audit is {_MEMBERS['x-audit']}")
    reads = said.method in ("GET", "HEAD")
    if audit == "none":
        if not reads and operations and {*operations} <= _GRAVE:
            raise said.refused("what changes something by delete or admin is audited: see x-audit")
        return None
    if reads:
        raise said.refused("reads are not audited: see x-audit")
    return audit
