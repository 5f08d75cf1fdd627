"""The internal listener: what the uploader, manifest and the reader ask of a tail."""

from concurrent.futures import Executor
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest, WrongOffset
from bottomless.model.limits import LONG_POLL_MS_MAX, MIB, OFFSET_MAX, TIMESTAMP_MAX
from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.local.appender import Appender
from bottomless_server.ingest.local.feed import CommitFeed, Run, bounds_of, locate, read_run
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import NodeLease
from bottomless_server.runtime.http.app import (
    create_api,
    integer,
    json_response,
    parse_json,
    parse_query,
    read_body,
    text,
)

_RUN_SIZE_DEFAULT = 4 * MIB
_RUN_SIZE_MAX = 64 * MIB
_SMALL_BODY_SIZE = 4096


class Tails:
    """What the internal routes are made of; there once the service has started."""

    def __init__(
        self,
        streams: OwnedStreams,
        feed: CommitFeed,
        lease: NodeLease,
        files: FileCalls,
        executor: Executor,
    ) -> None:
        self.streams = streams
        self.feed = feed
        self.lease = lease
        self._files = files
        self._executor = executor

    async def commits(self, request: Request) -> Response:
        asked = parse_query(request.scope, {"after": text, "wait_ms": integer(0, LONG_POLL_MS_MAX)})
        self.lease.require()
        answer = await self.feed.wait(asked.get("after"), asked.get("wait_ms", 0) / 1000)
        self.lease.require()
        return json_response(answer)

    async def chunks(self, stream_id: str, request: Request) -> Response:
        asked = parse_query(
            request.scope,
            {
                "first_offset": integer(0, OFFSET_MAX + 1),
                "max_bytes": integer(1, _RUN_SIZE_MAX),
                "wait_ms": integer(0, LONG_POLL_MS_MAX),
            },
        )
        first_offset = _required(asked, "first_offset")
        appender = await self.streams.get(parse_stream_id(stream_id))
        run = await read_run(
            self._files,
            self._executor,
            appender,
            first_offset,
            asked.get("max_bytes", _RUN_SIZE_DEFAULT),
            asked.get("wait_ms", 0) / 1000,
        )
        return Response(run.data, 200, _headers(appender, run), "application/octet-stream")

    async def locate(self, stream_id: str, request: Request) -> Response:
        asked = parse_query(request.scope, {"timestamp": integer(0, TIMESTAMP_MAX)})
        timestamp = _required(asked, "timestamp")
        appender = await self.streams.get(parse_stream_id(stream_id))
        offset = locate(appender, timestamp)
        return json_response({"offset": offset, **bounds_of(appender)})

    async def published(self, stream_id: str, request: Request) -> Response:
        parse_query(request.scope, {})
        members = await _members(request, "next_offset", "version")
        # Not opened for this: who opens it reads the record, which says the same.
        appender = self.streams.find(parse_stream_id(stream_id))
        if appender is not None:
            if members["next_offset"] > appender.log.next_offset:
                raise WrongOffset(
                    "more is said to be published than was committed",
                    facts={"committed_next": appender.log.next_offset},
                )
            appender.note_published(members["next_offset"], members["version"])
            self.feed.settle(appender)
        return json_response({})

    async def close(self, stream_id: str, request: Request) -> Response:
        parse_query(request.scope, {})
        await self.streams.close(parse_stream_id(stream_id))
        return json_response({})


def create_internal_api(tails: Tails) -> FastAPI:
    """The application of the internal listener."""
    api = create_api("Bottomless ingest, internal")
    stream = "/internal/v1/streams/{stream_id}"
    api.add_api_route("/internal/v1/commits", tails.commits, methods=["GET"])
    api.add_api_route(f"{stream}/chunks", tails.chunks, methods=["GET"])
    api.add_api_route(f"{stream}/locate", tails.locate, methods=["GET"])
    api.add_api_route(f"{stream}/published", tails.published, methods=["PUT"])
    api.add_api_route(f"{stream}/close", tails.close, methods=["POST"])
    return api


def _headers(appender: Appender, run: Run) -> dict[str, str]:
    bounds = bounds_of(appender)
    values = {
        "Chunks-Epoch": bounds["epoch"],
        "Chunks-First-Offset": run.first_offset,
        "Chunks-Next-Offset": run.next_offset,
        "Chunks-Log-End": run.log_end,
        "Local-First-Offset": bounds["local_first_offset"],
        "Committed-Next-Offset": bounds["committed_next"],
        "Published-Next-Offset": bounds["published_next"],
        "Manifest-Version": bounds["version"],
        "Last-Chunk-Offset": bounds["last_chunk_offset"],
        "Last-Timestamp": bounds["last_timestamp"],
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _required(asked: dict[str, Any], name: str) -> int:
    if name not in asked:
        sentence = "the parameter is required"
        fault = Fault(Code.BAD_PARAMETER, sentence, parameter=name)
        raise InvalidRequest(sentence, faults=[fault])
    return int(asked[name])


async def _members(request: Request, *names: str) -> dict[str, int]:
    body = await read_body(request.scope, request.receive, _SMALL_BODY_SIZE)
    value = parse_json(body)
    if not isinstance(value, dict) or value.keys() != set(names):
        raise InvalidRequest(f"the members are {names}", code=Code.VALIDATION_FAILED)
    if not all(type(number) is int and 0 <= number <= OFFSET_MAX + 1 for number in value.values()):
        raise InvalidRequest("the members are integers", code=Code.VALIDATION_FAILED)
    return value
