"""The tail on the wire: the bytes of the release before, and back to the same values."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.peers import SilentPeer

from bottomless.errors import Code, InvalidRequest, StoreError, Unavailable
from bottomless.model.limits import LONG_POLL_MS_MAX, OFFSET_MAX, TIMESTAMP_MAX
from bottomless.model.names import TENANT_DEFAULT, FullName, NodeId, StreamId, StreamName
from bottomless_server.manifest.common.owners import NodeAt, PeerOwners
from bottomless_server.protocol.peer import PeerAnswer, PeerBytes
from bottomless_server.protocol.registry import NODES, NodeSaid, encode_nodes
from bottomless_server.protocol.tail import (
    CHUNKS_QUERY,
    COMMITS_QUERY,
    LOCATE_QUERY,
    PART_SIZE_MAX,
    RUN_SIZE_MAX,
    Bounds,
    ChunkRun,
    ChunksAsked,
    Commit,
    Commits,
    CommitsAsked,
    LocateAsked,
    Located,
    Published,
    SegmentPart,
    bounds_of_moved,
    decode_chunks_asked,
    decode_commits,
    decode_locate_asked,
    decode_located,
    decode_published,
    decode_run,
    encode_commits,
    encode_located,
    encode_published,
    encode_run,
    moved,
)
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.owned_tail import OwnedTail
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.runtime.http.queries import parse_query
from bottomless_server.uploader.calls import IngestCalls
from unit.protocol.wire import STREAM_ID, Asked, NotingPeer, received, received_headers, sent

BOUNDS = Bounds(7, 10, 40, 20, 5, 30, 1_750_000_000_000)
NO_RECORDS = Bounds(7, 10, 40, 20, 5, None, 0)
COMMIT = Commit(STREAM_ID, 7, 40, 20, 4_096, 67_108_864, 60_000)

offsets = st.integers(0, OFFSET_MAX + 1)
numbers = st.integers(0, 2**63 - 1)
bounds = st.builds(
    Bounds,
    epoch=numbers,
    local_first_offset=offsets,
    committed_next=offsets,
    published_next=offsets,
    version=numbers,
    last_chunk_offset=st.none() | offsets,
    last_timestamp=st.none() | st.integers(0, TIMESTAMP_MAX),
)
parts = st.builds(
    SegmentPart,
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).map("/{}".format),
    numbers,
    st.integers(1, PART_SIZE_MAX),
    offsets,
    numbers,
)
node_ids = st.uuids().map(lambda uuid: NodeId(uuid.hex))
runs = st.builds(
    ChunkRun,
    bounds,
    offsets,
    offsets,
    numbers,
    st.binary(max_size=50),
    st.none() | parts,
    st.lists(node_ids, max_size=3).map(tuple),
)
commits = st.builds(
    Commits,
    st.text(min_size=1),
    st.lists(
        st.builds(Commit, st.uuids().map(lambda uuid: StreamId(str(uuid))), *[numbers] * 6)
    ).map(tuple),
)
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_the_headers_of_a_run_are_those_of_the_release_before() -> None:
    run = ChunkRun(BOUNDS, 12, 34, 2_048, b"")

    assert list(encode_run(run).items()) == [
        ("chunks-epoch", "7"),
        ("chunks-first-offset", "12"),
        ("chunks-next-offset", "34"),
        ("chunks-log-end", "2048"),
        ("local-first-offset", "10"),
        ("committed-next-offset", "40"),
        ("published-next-offset", "20"),
        ("manifest-version", "5"),
        ("last-chunk-offset", "30"),
        ("last-timestamp", "1750000000000"),
    ]
    assert "last-chunk-offset" not in encode_run(run._replace(bounds=NO_RECORDS))
    assert encode_run(run._replace(bounds=NO_RECORDS))["last-timestamp"] == "0"


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            encode_located(Located(12, BOUNDS)),
            (
                b'{"offset":12,"epoch":7,"local_first_offset":10,"committed_next":40,'
                b'"published_next":20,"version":5,"last_chunk_offset":30,'
                b'"last_timestamp":1750000000000}'
            ),
        ),
        (
            encode_located(Located(None, NO_RECORDS)),
            (
                b'{"offset":null,"epoch":7,"local_first_offset":10,"committed_next":40,'
                b'"published_next":20,"version":5,"last_chunk_offset":null,"last_timestamp":0}'
            ),
        ),
        (
            encode_commits(Commits("0011223344556677.1", (COMMIT,))),
            (
                b'{"token":"0011223344556677.1","streams":[{'
                b'"stream_id":"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11","epoch":7,"committed_next":40,'
                b'"published_next":20,"log_end":4096,"target_bytes":67108864,"max_age_ms":60000}]}'
            ),
        ),
        (encode_commits(Commits("a.0", ())), b'{"token":"a.0","streams":[]}'),
        (encode_published(Published(20, 5)), b'{"next_offset":20,"version":5}'),
        (
            moved(BOUNDS).facts,
            (
                b'{"epoch":7,"local_first_offset":10,"committed_next":40,"published_next":20,'
                b'"version":5,"last_chunk_offset":30,"last_timestamp":1750000000000}'
            ),
        ),
    ],
)
def test_each_message_has_the_bytes_of_the_release_before(message: Any, wire: bytes) -> None:
    assert sent(message) == wire


async def test_each_question_has_the_bytes_of_the_release_before() -> None:
    peer = NotingPeer()
    ingest, owners = IngestCalls(peer, "http://ingest"), PeerOwners(peer)
    for question in (
        ingest.commits(None, 5),
        ingest.commits("a.1", 5),
        ingest.chunks(STREAM_ID, 12, 100),
        owners.first_offset("url", STREAM_ID),
        owners.committed_next("url", STREAM_ID),
        owners.published("url", STREAM_ID, 20, 5),
        owners.close(NodeAt(NodeId("a" * 32), "url"), STREAM_ID, 1),
    ):
        with pytest.raises(Asked):
            await question

    stream = "/internal/v1/streams/0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    assert peer.asked == [
        ("GET", "/internal/v1/commits?wait_ms=5", b""),
        ("GET", "/internal/v1/commits?wait_ms=5&after=a.1", b""),
        ("GET", f"{stream}/chunks?first_offset=12&max_bytes=100&wait_ms=0", b""),
        ("GET", f"{stream}/locate?timestamp=0", b""),
        ("GET", f"{stream}/locate?timestamp=0", b""),
        ("PUT", f"{stream}/published", b'{"next_offset":20,"version":5}'),
        ("POST", f"{stream}/close", b""),
    ]


@given(runs)
def test_a_run_comes_back_as_it_was_given(run: ChunkRun) -> None:
    assert decode_run(PeerBytes(received_headers(encode_run(run)), run.data)) == run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunks-file", "relative"),
        ("chunks-file", ""),
        ("chunks-file-position", "-1"),
        ("chunks-file-size", "0"),
        ("chunks-file-size", str(PART_SIZE_MAX + 1)),
        ("chunks-segment-epoch", "x"),
        ("chunks-segment-first-offset", None),
    ],
)
def test_a_place_in_a_file_that_is_none_is_the_peers_fault(name: str, value: str | None) -> None:
    part = SegmentPart("/data/1.segment", 64, 1_000, 10, 7)
    headers = encode_run(ChunkRun(BOUNDS, 12, 34, 2_048, b"", part))
    assert decode_run(PeerBytes(headers, b"")).part == part
    headers.pop(name)
    if value is not None:
        headers[name] = value

    with pytest.raises(Unavailable) as caught:
        decode_run(PeerBytes(headers, b""))
    assert caught.value.code is Code.PEER_UNAVAILABLE


@given(commits)
def test_commits_come_back_as_they_were_given(given_: Commits) -> None:
    assert decode_commits(received(sent(encode_commits(given_)))) == given_


@given(st.builds(Located, st.none() | offsets, bounds))
def test_a_place_comes_back_as_it_was_given(located: Located) -> None:
    assert decode_located(received(sent(encode_located(located)))) == located


@given(bounds)
def test_the_bounds_of_what_has_moved_come_back_as_they_were_given(given_: Bounds) -> None:
    assert bounds_of_moved(moved(given_)) == given_


@given(st.builds(Published, offsets, offsets))
def test_what_is_published_comes_back_as_it_was_told(published: Published) -> None:
    assert decode_published(received(sent(encode_published(published)))) == published


@given(
    st.builds(
        ChunksAsked,
        offsets,
        st.integers(1, RUN_SIZE_MAX),
        st.integers(0, LONG_POLL_MS_MAX),
        st.integers(0, 1),
    ),
    st.builds(CommitsAsked, st.integers(0, LONG_POLL_MS_MAX), st.none() | st.text(min_size=1)),
    st.builds(LocateAsked, st.integers(0, TIMESTAMP_MAX)),
)
def test_each_question_comes_back_as_it_was_asked(
    chunks: ChunksAsked, commits: CommitsAsked, locate: LocateAsked
) -> None:
    assert decode_chunks_asked(parse_query(_scope(chunks), CHUNKS_QUERY)) == chunks
    assert CommitsAsked(**parse_query(_scope(commits), COMMITS_QUERY)) == commits
    assert decode_locate_asked(parse_query(_scope(locate), LOCATE_QUERY)) == locate


@pytest.mark.parametrize("decode", [decode_chunks_asked, decode_locate_asked])
def test_a_question_without_what_it_needs_is_refused(decode: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode({})
    assert [fault.code for fault in caught.value.faults] == [Code.BAD_PARAMETER]


@given(nonsense)
def test_an_answer_that_is_none_is_the_peers_fault_and_no_crash(body: Any) -> None:
    for decode in (decode_commits, decode_located):
        with pytest.raises(Unavailable) as caught:
            decode(body)
        assert caught.value.code is Code.PEER_UNAVAILABLE
    with pytest.raises(InvalidRequest) as refused:
        decode_published(body)
    assert refused.value.code is Code.VALIDATION_FAILED
    with pytest.raises(Unavailable):
        bounds_of_moved(StoreError("moved", facts={"epoch": body}))


@given(runs, st.sampled_from(sorted(encode_run(ChunkRun(BOUNDS, 0, 0, 0, b"")))), st.text())
def test_a_run_with_a_header_that_is_none_is_the_peers_fault_and_no_crash(
    run: ChunkRun, name: str, value: str
) -> None:
    headers = encode_run(run)
    optional = name in ("last-chunk-offset", "last-timestamp")
    headers.pop(name, None)
    if not optional:
        with pytest.raises(Unavailable):
            decode_run(PeerBytes(headers, run.data))
    headers[name] = value + "x"
    with pytest.raises(Unavailable) as caught:
        decode_run(PeerBytes(headers, run.data))
    assert caught.value.code is Code.PEER_UNAVAILABLE


class OneOwner(SilentPeer):
    """An ingest node that answers with these headers."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    async def fetch(self, _: str, /, **__: Any) -> PeerBytes:
        return PeerBytes(self._headers, b"")


class TwoNodes(SilentPeer):
    """The node that a stream's record names answers out of turn, and another one owns the stream."""

    def at(self, url: str, /) -> OneOwner:
        headers = encode_run(ChunkRun(BOUNDS, 40, 40, 0, b""))
        if url == "http://old":
            del headers["chunks-log-end"]
        return OneOwner(headers)

    async def call(self, _: str, path: str, /, **__: Any) -> PeerAnswer:
        assert path == NODES
        nodes = [NodeSaid("0" * 32, "http://old"), NodeSaid("1" * 32, "http://new")]
        return PeerAnswer(200, {}, encode_nodes(nodes))


async def test_a_node_whose_answer_is_none_is_passed_over_by_a_reader() -> None:
    """It was an internal error of the reader: nobody had let a node leave out a header."""
    nodes = TwoNodes()
    tail = OwnedTail(nodes, nodes, IngestNodes(nodes))
    name = FullName(TENANT_DEFAULT, StreamName("orders"))

    assert await tail.bounds(StreamFacts(STREAM_ID, name, 7, "http://old")) == BOUNDS


@given(runs, commits, st.builds(Located, offsets, bounds))
def test_what_a_later_release_says_beside_it_is_no_hindrance(
    run: ChunkRun, given_: Commits, located: Located
) -> None:
    more = {"said-by-a-later-release": "1"}
    assert decode_run(PeerBytes({**encode_run(run), **more}, run.data)) == run
    body = encode_commits(given_)
    body["streams"] = [{**stream, **more} for stream in body["streams"]]
    assert decode_commits({**body, **more}) == given_
    assert decode_located({**encode_located(located), **more}) == located


@pytest.mark.parametrize("name", Bounds._fields[:5])
def test_bounds_with_a_member_of_another_kind_are_not_taken(name: str) -> None:
    body = encode_located(Located(1, BOUNDS))
    for value in ("7", 7.0, True, None, [7]):
        with pytest.raises(Unavailable):
            decode_located({**body, name: value})


def _scope(asked: ChunksAsked | CommitsAsked | LocateAsked) -> dict[str, Any]:
    peer = NotingPeer()
    peer._note("GET", "", asked.params(), b"")
    return {"query_string": peer.asked[0][1].removeprefix("?").encode()}
