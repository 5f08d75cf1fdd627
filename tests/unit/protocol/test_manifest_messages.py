"""What manifest and its callers say: the bytes of the release before, and back to the same values."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.harness import StandingClocks

from bottomless.drives.base import Drive
from bottomless.errors import Code, InvalidRequest, Unavailable
from bottomless.model.config import FilterConfig, StreamConfig
from bottomless.model.consumer import StoredOffset
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import (
    TENANT_DEFAULT,
    FullName,
    NodeId,
    Reference,
    StreamId,
    StreamName,
    Uid,
)
from bottomless.model.stream import RootPointer, StreamRecord, StreamState
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.protocol.forwarding import ForwardedFor, decode_forwarded, encode_forwarded
from bottomless_server.protocol.keys import KeySaid, decode_key, encode_key
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import (
    NamesAsked,
    NodeSaid,
    RootState,
    StreamSaid,
    decode_names_shown,
    decode_nodes,
    decode_root,
    decode_stored_offset,
    decode_stream,
    decode_streams,
    encode_names_asked,
    encode_names_shown,
    encode_nodes,
    encode_registered,
    encode_root,
    encode_stored_offset,
    encode_stream,
    encode_streams,
)
from bottomless_server.protocol.secret import headers_to, shown_secret
from bottomless_server.protocol.uploads import (
    AbandonAsked,
    BeginAsked,
    Intended,
    IntentsAsked,
    Opened,
    RegisterAsked,
    Registered,
    decode_intended,
    decode_opened,
    decode_registered,
    encode_abandon,
    encode_begin,
    encode_intended,
    encode_intents_asked,
    encode_opened,
    encode_register,
)
from bottomless_server.protocol.uploads import encode_registered as encode_fragments_registered
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.roots import Roots
from bottomless_server.reader.stored_offsets import StoredOffsets
from bottomless_server.reader.streams import Streams
from bottomless_server.stores.streams import Streams as StoredStreams
from bottomless_server.uploader.calls import ManifestCalls
from unit.protocol.wire import STREAM_ID, Asked, NotingPeer, received, sent

ROOT = RootPointer(Uid("ab" * 16), 0, 7, 5, 320, 99)
STATE = RootState(5, 7, 20, 10, ROOT, 1_750_000_000_001)
RECORD = StreamRecord(
    STREAM_ID,
    StreamName("orders"),
    TENANT_DEFAULT,
    StreamState.ACTIVE,
    1_750_000_000_000,
    StreamConfig(),
    config_version=2,
    epoch=7,
    version=5,
    home=NodeId("0" * 31 + "1"),
    owner_url="http://ingest:4001",
    published_next=20,
)
ACME = FullName("acme", StreamName("orders"))
FILTERED = FragmentInfo(
    *(Uid("cd" * 16), 20, 40, 1, 2, 7, 20, 4_096, 512, 77),
    filter_presence=Presence.KNOWN | Presence.SOME,
    filter_blocks=bytes(range(64)),
    filters_size=128,
)
INFO = FragmentInfo(Uid("cd" * 16), 20, 40, 1, 2, 7, 20, 4_096, 512, 77)
KEY = KeySaid("0" * 24, ("ef" * 32,), "acme", ("*",), None, "active")

numbers = st.integers(0, 2**63 - 1)
offsets = st.integers(0, OFFSET_MAX + 1)
uids = st.binary(min_size=16, max_size=16).map(lambda raw: Uid(raw.hex()))
stream_ids = st.uuids().map(lambda uuid: StreamId(str(uuid)))
words = st.text("aZ09", min_size=1, max_size=1).flatmap(
    lambda first: st.text("aZ09_-", max_size=20).map(lambda rest: first + rest)
)
names = st.builds(FullName, words, words.map(StreamName))
sessions = st.text(min_size=1, max_size=128)
pointers = st.builds(RootPointer, uids, *[numbers] * 5)
infos = st.builds(
    lambda first, count, index_size, body_size, *rest: FragmentInfo(
        rest[0],
        first,
        first + count,
        3,
        3 + rest[1],
        rest[2],
        count,
        index_size + body_size,
        index_size,
        rest[3],
    ),
    st.integers(0, 2**40),
    st.integers(1, 2**20),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**40),
    uids,
    st.integers(0, 2**40),
    numbers,
    st.integers(0, 2**32 - 1),
)
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)

ROOT_BYTES = (
    b'{"version":5,"epoch":7,"published_next":20,"first_offset":10,"root":{'
    b'"uid":"abababababababababababababababab","generation":0,"epoch":7,"version":5,'
    b'"size":320,"crc":99},"last_timestamp":1750000000001}'
)
STREAM_BYTES = (
    b'{"stream_id":"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11","name":"orders","state":"active",'
    b'"created_at":1750000000000,"config":{"retention":{"max_age":null,"max_bytes":null},'
    b'"fragment":{"target_bytes":67108864,"max_age_ms":60000},"labels":{}},"config_version":2,'
    b'"epoch":7,"home":"00000000000000000000000000000001","owner_url":"http://ingest:4001",'
    b'"version":5,"published_next":20}'
)
FOUND_BYTES = (
    b'{"streams":[{"tenant":"acme","name":"orders",'
    b'"stream_id":"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"}]}'
)
KEY_BYTES = (
    b'{"key_id":"000000000000000000000000","secret_sha256":["' + b"ef" * 32 + b'"],'
    b'"tenant":"acme","scopes":["*"],"expires_at":null,"state":"active"}'
)
REGISTERED_BYTES = (
    b'{"published_next":40,"version":6,"applied":["cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"],"waiting":[]}'
)
FRAGMENTS_BYTES = (
    b'{"session":"s1","fragments":[{"uid":"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","first_offset":20,'
    b'"next_offset":40,"first_timestamp":1,"last_timestamp":2,"epoch":7,"record_count":20,'
    b'"size":4096,"index_size":512,"crc":77}]}'
)


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (encode_stream(RECORD), STREAM_BYTES),
        (encode_streams({ACME: STREAM_ID}), FOUND_BYTES),
        (encode_root(STATE), ROOT_BYTES),
        (encode_root(replace(STATE, root=None))["root"], b"null"),
        (
            encode_nodes([NodeSaid("0" * 32, "unix:///a.sock")]),
            b'{"nodes":[{"node_id":"' + b"0" * 32 + b'","url":"unix:///a.sock"}]}',
        ),
        (encode_registered(3), b'{"registry_version":3}'),
        (
            encode_stored_offset(StoredOffset(Reference("c1"), 9, 1_000, 4)),
            b'{"consumer":"c1","next_offset":9,"committed_at":1000}',
        ),
        (encode_key(KEY), KEY_BYTES),
        (
            encode_opened(Opened(20, 5, 7, "acme")),
            b'{"published_next":20,"version":5,"epoch":7,"tenant":"acme"}',
        ),
        (
            encode_intended([INFO.uid], FilterConfig()),
            b'{"uids":["cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"]}',
        ),
        (encode_fragments_registered(Registered(40, 6, (INFO.uid,), ())), REGISTERED_BYTES),
    ],
)
def test_each_answer_has_the_bytes_of_the_release_before(message: Any, wire: bytes) -> None:
    assert sent(message) == wire


async def test_each_question_has_the_bytes_of_the_release_before() -> None:
    peer = NotingPeer()
    for question in _questions(peer, MemoryDrive()):
        with pytest.raises(Asked):
            await question()

    base = "/internal/v1"
    stream = f"{base}/streams/0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    uid = b"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
    assert peer.asked == [
        ("GET", f"{base}/nodes", b""),
        ("GET", f"{base}/nodes", b""),
        ("POST", f"{stream}/uploads", b'{"session":"s1"}'),
        ("POST", f"{stream}/intents", b'{"session":"s1","first_offsets":[20,30]}'),
        ("POST", f"{stream}/fragments", FRAGMENTS_BYTES),
        ("POST", f"{stream}/abandon", b'{"session":"s1","uids":["' + uid + b'"]}'),
        ("GET", f"{stream}/root", b""),
        ("GET", f"{stream}/consumers/c1/offset", b""),
        ("GET", f"{base}/streams/by-name/orders?tenant=acme", b""),
        ("GET", f"{base}/streams/by-name/orders?tenant=acme", b""),
        ("PUT", f"{stream}/registry", b""),
        ("GET", stream, b""),
    ]
    assert sent(encode_names_asked([ACME])) == b'{"names":[{"tenant":"acme","name":"orders"}]}'


def _questions(peer: PeerPort, drive: Drive) -> list[Callable[[], Awaitable[Any]]]:
    manifest = ManifestCalls(peer)
    stored = StoredStreams(MemoryCoordination(lambda: 0))
    ingest = StreamNames(peer, stored, StandingClocks().clocks(), 1_000)
    return [
        manifest.node_urls,
        IngestNodes(peer).urls,
        lambda: manifest.uploads(STREAM_ID, "s1"),
        lambda: manifest.intents(STREAM_ID, "s1", (20, 30)),
        lambda: manifest.register(STREAM_ID, "s1", [INFO]),
        lambda: manifest.abandon(STREAM_ID, "s1", [INFO.uid]),
        lambda: Roots(peer, drive, SharedCache(0), 5).refreshed(STREAM_ID),
        lambda: StoredOffsets(peer).find(STREAM_ID, Reference("c1")),
        lambda: Streams(peer, 5, lambda: 0).find(ACME),
        lambda: ingest.find(ACME),
        lambda: ingest.note_home(STREAM_ID),
        lambda: ingest.state_of(STREAM_ID),
    ]


@given(stream_ids, st.sampled_from(StreamState), numbers, st.none() | st.text())
def test_a_stream_comes_back_as_it_was_described(
    stream_id: StreamId, state: StreamState, epoch: int, owner_url: str | None
) -> None:
    record = replace(RECORD, stream_id=stream_id, state=state, epoch=epoch, owner_url=owner_url)
    said = decode_stream(received(sent(encode_stream(record))))
    assert said == StreamSaid(stream_id, state, epoch, owner_url, "local")


def test_the_profile_of_a_stream_is_told_with_it() -> None:
    record = replace(RECORD, config=StreamConfig(profile="leaderless"), owner_url=None)
    assert decode_stream(received(sent(encode_stream(record)))).profile == "leaderless"


@pytest.mark.parametrize("config", [{"profile": "later"}, {"profile": 1}, [], None])
def test_a_stream_of_a_profile_that_is_not_known_is_not_taken_for_another(config: Any) -> None:
    with pytest.raises(Unavailable):
        decode_stream({**encode_stream(RECORD), "config": config})


@given(st.dictionaries(names, stream_ids, min_size=1, max_size=5))
def test_names_and_their_streams_come_back_as_they_were(found: dict[FullName, StreamId]) -> None:
    asked = NamesAsked.model_validate(received(sent(encode_names_asked([*found]))))
    assert asked.full_names() == [*found]
    assert decode_streams(received(sent(encode_streams(found)))) == found


shown_marks = st.tuples(st.none() | numbers, st.none() | st.text())


@given(shown_marks, shown_marks)
def test_what_is_shown_of_names_is_the_same_exactly_where_it_was(
    one: tuple[int | None, str | None], other: tuple[int | None, str | None]
) -> None:
    heard = [decode_names_shown(received(sent(encode_names_shown(*told)))) for told in (one, other)]
    assert (heard[0] == heard[1]) is (one == other or one[0] is None is other[0])
    assert (heard[0] is None) is (one[0] is None)


@given(
    st.builds(RootState, numbers, numbers, offsets, offsets, st.none() | pointers, offsets),
    st.lists(st.builds(NodeSaid, words, st.text())),
    offsets,
)
def test_roots_nodes_and_offsets_come_back_as_they_were_told(
    state: RootState, nodes: list[NodeSaid], next_offset: int
) -> None:
    stored = StoredOffset(Reference("c1"), next_offset, 0, 0)
    assert decode_root(received(sent(encode_root(state)))) == state
    assert decode_nodes(received(sent(encode_nodes(nodes)))) == nodes
    assert decode_stored_offset(received(sent(encode_stored_offset(stored)))) == next_offset


@given(
    st.builds(
        KeySaid,
        words,
        st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex)).map(tuple),
        words,
        st.lists(st.text()).map(tuple),
        st.none() | numbers,
        words,
    )
)
def test_a_key_comes_back_as_it_was_described(key: KeySaid) -> None:
    assert decode_key(received(sent(encode_key(key)))) == key


@given(
    sessions, st.lists(infos, min_size=1, max_size=5), st.lists(offsets, min_size=1, max_size=256)
)
def test_what_an_uploader_asks_comes_back_as_it_was_asked(
    session: str, fragments: list[FragmentInfo], first_offsets: list[int]
) -> None:
    told = [info.uid for info in fragments]
    begin = BeginAsked.model_validate(received(sent(encode_begin(session))))
    intents = IntentsAsked.model_validate(
        received(sent(encode_intents_asked(session, first_offsets)))
    )
    register = RegisterAsked.model_validate(received(sent(encode_register(session, fragments))))
    abandon = AbandonAsked.model_validate(received(sent(encode_abandon(session, told))))

    assert {each.session for each in (begin, intents, register, abandon)} == {session}
    assert (intents.first_offsets, intents.drives) == (first_offsets, [])
    able = IntentsAsked.model_validate(
        received(sent(encode_intents_asked(session, first_offsets, (1, 254))))
    )
    assert able.drives == [1, 254]
    assert register.infos() == fragments
    assert abandon.uids == told


@given(
    st.builds(Opened, offsets, numbers, numbers, words),
    st.lists(uids),
    st.builds(Registered, offsets, numbers, st.lists(uids).map(tuple), st.lists(uids).map(tuple)),
)
def test_what_an_uploader_is_answered_comes_back_as_it_was_told(
    opened: Opened, given_: list[Uid], registered: Registered
) -> None:
    assert decode_opened(received(sent(encode_opened(opened)))) == opened
    for asked in (FilterConfig(), FilterConfig(index="values-and-keys", max_bytes=64)):
        answer = received(sent(encode_intended(given_, asked)))
        assert decode_intended(answer, range(len(given_))) == Intended(given_, asked)
    answer = received(sent(encode_intended(given_, FilterConfig(), 254)))
    assert decode_intended(answer, range(len(given_))) == Intended(given_, drive=254)
    answer = received(sent(encode_fragments_registered(registered)))
    assert decode_registered(answer) == registered


@given(nonsense)
def test_an_answer_that_is_none_is_the_peers_fault_and_no_crash(body: Any) -> None:
    for decode in (
        decode_stream,
        decode_streams,
        decode_names_shown,
        decode_root,
        decode_nodes,
        decode_stored_offset,
        decode_key,
        decode_opened,
        decode_registered,
        lambda answer: decode_intended(answer, (1,)),
    ):
        with pytest.raises(Unavailable) as caught:
            decode(body)
        assert caught.value.code is Code.PEER_UNAVAILABLE
    for model in (NamesAsked, BeginAsked, IntentsAsked, RegisterAsked, AbandonAsked):
        with pytest.raises(ValidationError):
            model.model_validate(body)


def test_a_fragment_with_filters_is_told_of_with_them() -> None:
    told = received(sent(encode_register("s1", [FILTERED, INFO])))
    assert RegisterAsked.model_validate(told).infos() == [FILTERED, INFO]
    assert "filter_presence" not in told["fragments"][1]
    told["fragments"][0]["filter_blocks"] = "00" * 33
    with pytest.raises(ValidationError):
        RegisterAsked.model_validate(told)


@pytest.mark.parametrize(
    "broken",
    [
        INFO._replace(next_offset=41),
        INFO._replace(last_timestamp=0),
        INFO._replace(index_size=4_096),
        INFO._replace(filter_presence=Presence.SOME),
        FILTERED._replace(filter_presence=Presence.KNOWN | Presence.NONE),
        FILTERED._replace(filter_blocks=bytes(96)),
        FILTERED._replace(filters_size=130),
        FILTERED._replace(filters_size=4_096),
    ],
)
def test_a_fragment_that_contradicts_itself_is_refused(broken: FragmentInfo) -> None:
    asked = RegisterAsked.model_validate(encode_register("s1", [broken]))
    with pytest.raises(InvalidRequest) as caught:
        asked.infos()
    assert caught.value.code is Code.VALIDATION_FAILED


def test_as_many_uids_come_as_were_asked_for() -> None:
    for count in (0, 2):
        with pytest.raises(Unavailable):
            decode_intended(encode_intended([INFO.uid], FilterConfig()), range(count))


def test_who_a_request_is_passed_on_for_has_the_bytes_of_the_release_before() -> None:
    assert encode_forwarded(ForwardedFor("acme", "key:a b")) == [
        ("bottomless-forwarded-tenant", "acme"),
        ("bottomless-forwarded-actor", "key%3Aa%20b"),
    ]
    assert encode_forwarded(ForwardedFor("acme", None)) == [("bottomless-forwarded-tenant", "acme")]
    assert decode_forwarded({b"bottomless-forwarded-actor": b"x"}) is None


@given(st.builds(ForwardedFor, words, st.none() | st.text()))
def test_who_a_request_is_passed_on_for_comes_back_as_it_was(asked: ForwardedFor) -> None:
    headers = {name.encode(): value.encode("ascii") for name, value in encode_forwarded(asked)}
    assert decode_forwarded(headers) == asked


def test_the_secret_is_shown_over_tcp_alone_and_once() -> None:
    assert headers_to("http://a:1", "s" * 32) == {"authorization": "Bearer " + "s" * 32}
    assert headers_to("unix:///a.sock", "s" * 32) == {}
    assert headers_to("http://a:1", None) == {}
    shown = (b"authorization", b"bEaReR abc")
    assert shown_secret([(b"host", b"a"), shown]) == b"abc"
    assert shown_secret([shown, shown]) is None
    assert shown_secret([(b"authorization", b"Basic abc")]) is None
    assert shown_secret([]) is None
