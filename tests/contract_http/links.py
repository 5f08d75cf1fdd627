"""What one answer is good for in the next request: the links of the contract, across its files.

OpenAPI links name an operation of the same file, and the services have a file each; so they
are added to the one document that all of them make.
"""

from typing import Any, Final, NamedTuple

_STREAM: Final = {"path.s": "$request.path.s"}
_CONSUMER: Final = {**_STREAM, "path.c": "$request.path.c"}


class Link(NamedTuple):
    source: str
    status: str
    target: str
    parameters: dict[str, str]


LINKS: Final = (
    *(
        Link("put_stream", status, target, _STREAM)
        for status in ("201", "200")
        for target in (
            "append_records",
            "get_records",
            "get_offsets",
            "get_fragments",
            "get_stream",
            "head_stream",
            "grant_lease",
            "list_producers",
            "list_consumers",
            "delete_stream",
            "get_manifest",
            "verify_manifest",
        )
    ),
    Link(
        "put_stream", "201", "patch_stream", {**_STREAM, "header.If-Match": "$response.header.ETag"}
    ),
    Link(
        "append_records",
        "200",
        "append_records",
        {**_STREAM, "header.Stream-Expected-Offset": "$response.body#/next_offset"},
    ),
    Link(
        "append_records",
        "200",
        "get_records_one",
        {**_STREAM, "path.offset": "$response.body#/first_offset"},
    ),
    Link(
        "append_records",
        "200",
        "get_records",
        {**_STREAM, "query.offset": "$response.body#/first_offset"},
    ),
    Link("append_records", "200", "put_consumer_offset", _STREAM),
    Link("append_records", "200", "trim_stream", _STREAM),
    Link("append_records", "200", "evaluate_retention", _STREAM),
    Link("append_records", "200", "delete_stream", _STREAM),
    Link(
        "get_records",
        "200",
        "get_records",
        {**_STREAM, "query.offset": "$response.body#/next_offset"},
    ),
    Link(
        "get_records",
        "200",
        "get_records",
        {**_STREAM, "header.If-None-Match": "$response.header.ETag"},
    ),
    Link(
        "get_fragments",
        "200",
        "get_fragments_bytes",
        {**_STREAM, "path.fragment_id": "$response.body#/fragments/0/id"},
    ),
    Link("raise_producer_epoch", "200", "get_producer", {**_STREAM, "path.p": "$request.path.p"}),
    Link(
        "raise_producer_epoch", "200", "forget_producer", {**_STREAM, "path.p": "$request.path.p"}
    ),
    Link("put_consumer_offset", "200", "get_consumer", _CONSUMER),
    Link("put_consumer_offset", "200", "get_consumer_offset", _CONSUMER),
    Link(
        "put_consumer_offset",
        "200",
        "delete_consumer_offset",
        {**_CONSUMER, "header.If-Match": "$response.header.ETag"},
    ),
    Link(
        "grant_lease",
        "201",
        "renew_lease",
        {**_STREAM, "path.lease_id": "$response.body#/lease_id"},
    ),
    Link(
        "grant_lease",
        "201",
        "give_lease_back",
        {**_STREAM, "path.lease_id": "$response.body#/lease_id"},
    ),
    *(
        Link("create_key", "201", target, {"path.key_id": "$response.body#/key_id"})
        for target in ("get_key", "rotate_key", "revoke_key")
    ),
    *(
        Link(
            "join_group",
            "201",
            target,
            {**_STREAM, "path.g": "$request.path.g", "path.m": "$response.body#/member_id"},
        )
        for target in ("heartbeat_member", "leave_group")
    ),
    *(
        Link("join_group", "201", target, {**_STREAM, "path.g": "$request.path.g"})
        for target in ("get_group", "activate_member", "delete_group")
    ),
    Link(
        "list_streams",
        "200",
        "list_streams",
        {"query.page_token": "$response.body#/next_page_token"},
    ),
    *(
        Link(
            source,
            "202",
            "get_operation",
            {"path.operation_id": "$response.body#/operation_id"},
        )
        for source in (
            "delete_stream",
            "evaluate_retention",
            "trim_stream",
            "verify_manifest",
            "collect_garbage",
        )
    ),
)


def add_links(document: dict[str, Any]) -> None:
    """Into the document, in place; every link must be between operations that it has."""
    operations = {
        operation["operationId"]: operation
        for item in document["paths"].values()
        for operation in item.values()
    }
    for number, link in enumerate(LINKS):
        assert link.target in operations, link
        response = operations[link.source]["responses"][link.status]
        if "$ref" in response:
            _, _, kind, name = response.pop("$ref").split("/")
            response.update(document["components"][kind][name])
        links = response.setdefault("links", {})
        links[f"link{number}"] = {
            "operationId": link.target,
            "parameters": dict(link.parameters),
        }
