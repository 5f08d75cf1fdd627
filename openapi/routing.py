"""What proxies and people are told of the contract: texts that stand in files between two marks.

Proxies know as little as they need: a branch of paths that one service has all of is one line,
and what is built there later needs no change of theirs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from bottomless_server.runtime.http.endpoint_table import EndpointTable, Place, Reach

_BEGIN: Final = "made of openapi/ by ./dev contract: "
_END: Final = "made until here"
_BLOCK: Final = re.compile(
    rf"(?P<begin>^[^\n]*{re.escape(_BEGIN)}(?P<name>[\w-]+)[^\n]*\n).*?(?P<end>^[^\n]*{_END})",
    re.MULTILINE | re.DOTALL,
)


class Branch(NamedTuple):
    """Paths that go where the rest of what is below /v1/ does not."""

    path: str
    services: dict[str, str]
    """By method; under `""` the only one."""
    below: bool
    """All paths below it go there, too."""
    methods: frozenset[str]
    """All that its paths take."""


def written_into(text: str, blocks: Mapping[str, str]) -> str:
    """A file's text with its blocks made anew."""
    names = [found["name"] for found in _BLOCK.finditer(text)]
    assert sorted(names) == sorted(blocks), f"marks of {sorted(blocks)} are wanted, not of {names}"
    return _BLOCK.sub(lambda found: found["begin"] + blocks[found["name"]] + found["end"], text)


def branches(table: EndpointTable) -> Iterator[Branch]:
    """All that a proxy must know beside the default."""
    yield from _branches(table.root, "", table)


def _branches(place: Place, path: str, table: EndpointTable) -> Iterator[Branch]:
    beyond = place.nowhere.place.services_of_others
    if beyond and beyond != (table.default,):
        yield Branch(path, {"": beyond[0]}, below=True, methods=frozenset(_methods(place)))
        return
    own = {each.service for each in place.endpoints.values() if each.service}
    if path.startswith(table.below) and own - {table.default}:
        shared = {
            method: each.service
            for method, each in sorted(place.endpoints.items())
            if each.service is not None
        }
        services = shared if len(own) > 1 else {"": own.pop()}
        yield Branch(path, services, below=False, methods=frozenset(place.endpoints))
    for part, following in place.following().items():
        yield from _branches(following, f"{path}/{part}" if place is not table.root else "", table)


def _methods(place: Place) -> Iterator[str]:
    yield from place.endpoints
    for following in place.following().values():
        yield from _methods(following)


def _single(endpoints: Mapping[str, Any], table: EndpointTable) -> dict[str, str]:
    """Paths outside of /v1/ that a service has."""
    return {
        each["path"]: each["service"]
        for each in endpoints["endpoints"]
        if each["service"] and not each["path"].startswith(table.below)
    }


def of_nginx(table: EndpointTable, endpoints: Mapping[str, Any]) -> dict[str, str]:
    """The blocks of deploy/nginx.conf."""
    found = list(branches(table))
    return {
        "shared": "".join(
            _nginx_map(branch, table) for branch in found if "" not in branch.services
        ),
        "locations": _nginx_locations(found, table, endpoints),
    }


def _variable(branch: Branch) -> str:
    words = [part for part in branch.path.split("/") if part and "{" not in part]
    return f"${'_'.join(words[2:] or words)}_service"


def _nginx_map(branch: Branch, table: EndpointTable) -> str:
    lines = "".join(
        f'        "~^{method} " {service};\n' for method, service in branch.services.items()
    )
    return (
        f'    map "$request_method $request_uri" {_variable(branch)} {{\n'
        f'        "~*^[A-Z]+ [^?]*%2f" {table.default};\n{lines}        default "";\n    }}\n'
    )


_ONCE: Final = frozenset({"DELETE", "PUT"})
"""Methods that nginx would send a second time where an answer to the first did not come."""
_NEXT: Final = ("proxy_next_upstream error;",)


def _passing(methods: Iterable[str]) -> tuple[str, ...]:
    """What lets a request go to the next server where one cannot be reached."""
    return () if _ONCE.intersection(methods) else _NEXT


def _location(match: str, *lines: str) -> str:
    inner = "".join(f"            {line}\n" for line in lines)
    return f"        location {match} {{\n{inner}        }}\n"


def _nginx_locations(
    found: list[Branch], table: EndpointTable, endpoints: Mapping[str, Any]
) -> str:
    text = ""
    for branch in found:
        pattern = (
            "^" + re.sub(r"{[^}]*}", "[^/]+", branch.path) + ("(/|$)" if branch.below else "$")
        )
        if "" in branch.services:
            passed = f"proxy_pass http://{branch.services['']};"
            text += _location(f"~ {pattern}", *_passing(branch.methods), passed)
            continue
        name, methods = _variable(branch), list(branch.services)
        quoted = ",".join(f'"{method}"' for method in methods)
        text += _location(
            f"~ {pattern}",
            f'if ({name} = "") {{',
            f'    set $problem_allow "{", ".join(methods)}";',
            f"    set $problem_allowed ',\"allowed\":[{quoted}]';",
            "    return 405;",
            "}",
            *_passing(branch.methods),
            f"proxy_pass http://{name};",
        )
    text += _location(table.below, f"proxy_pass http://{table.default};")
    # Otherwise nginx sends its clients from there to the path above.
    text += _location(f"= {table.below.rstrip('/')}", "return 404;")
    for path, service in _single(endpoints, table).items():
        text += _location(f"= {path}", *_NEXT, f"proxy_pass http://{service};")
    for page in endpoints["pages"]:
        passed = f"proxy_pass http://{page['service']};"
        text += _location(f"= {page['path']}", *_NEXT, passed)
        if page["below"]:
            text += _location(f"{page['path']}/", *_NEXT, passed)
    return text


def proxy_for_people(table: EndpointTable, endpoints: Mapping[str, Any]) -> dict[str, str]:
    """The block of docs/deployment.md."""
    rows = ["| Path | Method | Service |", "|---|---|---|"]
    for branch in branches(table):
        path = f"`{branch.path}` " + ("and below " if branch.below else "")
        for method, service in branch.services.items():
            rows.append(f"| {path}| {f'`{method}`' if method else 'all'} | {service} |")
            path = ""
    rows.append(f"| everything else below `{table.below}` | all | {table.default} |")
    for path, service in _single(endpoints, table).items():
        rows.append(f"| `{path}` | all | {service} |")
    for page in endpoints["pages"]:
        path = f"`{page['path']}`" + (" and below" if page["below"] else "")
        rows.append(f"| {path} | all | {page['service']} |")
    rows.append("| everything else | | 404 |")
    return {"proxy": "\n".join(rows) + "\n"}


_ON: Final = {
    Reach.OPEN: "no credential",
    Reach.ANY_CREDENTIAL: "any good credential",
    Reach.STREAM: "",
    Reach.QUEUE: "",
    Reach.SOMEWHERE: ", on any stream",
    Reach.EVERYWHERE: ", on all streams",
    Reach.INSTALLATION: ", on all streams, in the tenant `default`",
}
_AUDIT: Final = {None: "", "by-route": "in some cases "}


def operations_for_people(endpoints: Mapping[str, Any]) -> dict[str, str]:
    """The block of docs/identity.md."""
    rows = ["| Operation | Needs | Audited as |", "|---|---|---|"]
    # What needs no credential stands last.
    for each in sorted(
        endpoints["endpoints"], key=lambda one: (one["on"] == Reach.OPEN, one["path"])
    ):
        needs = " or ".join(f"`{operation}`" for operation in each["operations"])
        audit = each["audit"]
        told = _AUDIT.get(audit, f"`{audit}` ")
        where = _ON[each["on"]]
        if each["operations"] and all(one.startswith("queue-") for one in each["operations"]):
            where = where.replace("stream", "queue")
        rows.append(f"| `{each['method']} {each['path']}` | {needs}{where} | {told}|")
    return {"operations": "\n".join(rows) + "\n"}
