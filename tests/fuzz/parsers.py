"""Every parser of what comes from outside: bodies, queries, headers, names, answers of a server."""

import asyncio
import gzip
import shutil
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
from golden.regenerate import golden
from support.arrow_ways import is_taken_in_place
from support.erlang_terms import as_term
from support.rabbitmq import MESSAGES, sub_entry
from unit.formats.examples import STREAM_ID, UID, a_frame

from bottomless.client.answer_parser import AnswerParser, NotHttp
from bottomless.client.follow import read_batches
from bottomless.client.problems import error_from_problem
from bottomless.errors import Corrupt, Denied, InvalidRequest, StoreError
from bottomless.formats.amqp import decode_message
from bottomless.formats.amqp_record import Collected, Taking, parse_source
from bottomless.formats.batch import decode_frames
from bottomless.formats.erlang_term import Atom, Pairs, decode_term
from bottomless.formats.keys import (
    api_key_key,
    fragment_key,
    generation_key,
    parse_api_key_key,
    parse_fragment_key,
    parse_generation_key,
    parse_queue_home_key,
    parse_queue_start_key,
    parse_root_key,
    queue_home_key,
    queue_start_key,
    root_key,
)
from bottomless.formats.osiris import (
    CHUNK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SubEntryCodec,
    check_segment_header,
    decode_chunk_header,
    entries_of,
    verify_data,
)
from bottomless.model.api_key import KeyId
from bottomless.model.config import encode_config, parse_config
from bottomless.model.limits import MIB
from bottomless.model.names import (
    NodeId,
    parse_reference,
    parse_stream_id,
    parse_stream_name,
    parse_tenant,
)
from bottomless.model.offset_spec import parse_offset_spec, parse_timestamp
from bottomless.model.queue import encode_queue_config, parse_queue_config
from bottomless_server.core.sealed_token import seal, unseal
from bottomless_server.ingest.log.layout import segment_path
from bottomless_server.ingest.log.recovery import recover
from bottomless_server.ingest.producers.commit_plan import parse_file_name
from bottomless_server.ingest.records.arrow_records import read_arrow
from bottomless_server.ingest.records.frames import read_frames
from bottomless_server.ingest.records.json_pointer import follow, parse_pointer
from bottomless_server.ingest.records.json_records import read_records
from bottomless_server.ingest.records.json_values import Shape, Within, read_values, split_lines
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.protocol.parameters import boolean, choice, integer, text
from bottomless_server.queues.core.receipt import Receipt, read_receipt, write_receipt
from bottomless_server.reader.core.byte_range import ByteRange, choose_range, etag_matches
from bottomless_server.reader.core.page_token import PageToken, decode_token, encode_token
from bottomless_server.runtime.http.bodies import (
    encode_json,
    negotiate,
    parse_json,
    parse_json_lines,
)
from bottomless_server.runtime.http.encodings import decode_body
from bottomless_server.runtime.http.queries import parse_query
from bottomless_server.runtime.identity.credential import (
    RefusedError,
    bearer_token,
    parse_api_key,
)

FRAME_SIZE_MAX = 100_000
SECRET = bytes(32)


class Parser(NamedTuple):
    parse: Callable[[bytes], object]
    good: bytes
    refusals: tuple[type[Exception], ...] = (InvalidRequest,)


def as_arrow(body: bytes) -> None:
    frames, _ = read_arrow(body, FRAME_SIZE_MAX)
    for frame in frames:
        [batch] = decode_frames(memoryview(frame.data))
        batch.validate(full=True)
        batch.to_pylist()


def as_arrow_in_place(body: bytes) -> None:
    """Whatever is taken in place, Arrow's own reader and writer make the same bytes of."""
    is_taken_in_place(body, frame_size_max=FRAME_SIZE_MAX)


def as_frames(body: bytes) -> None:
    for frame in read_frames(body, FRAME_SIZE_MAX):
        [batch] = decode_frames(memoryview(frame.data))
        batch.validate(full=True)
        assert batch.num_rows == frame.record_count


def as_json(body: bytes) -> None:
    rows, _ = read_records(parse_json(body), encode_json)
    assert rows.size >= 0


def as_lines(body: bytes) -> None:
    """Each line a value, with its key and time looked for within it."""
    lines = split_lines(body)
    rows = read_values(parse_json_lines(lines), len(lines), encode_json, Shape.LINES, WITHIN)
    assert len(rows.values) == body.count(b"\n") + (not body.endswith(b"\n"))
    assert [parse_json(value) for value in rows.values] == [parse_json(line) for line in lines]


def as_value(body: bytes) -> None:
    rows = read_values([parse_json(body)], 1, encode_json, Shape.WHOLE, WITHIN)
    assert parse_json(rows.values[0]) == parse_json(body)


def as_pointer(data: bytes) -> None:
    word = data.decode("utf-8", "surrogateescape")
    with suppress(UnicodeEncodeError):
        parts = parse_pointer(word)
        spelt = (part.replace("~", "~0").replace("/", "~1") for part in parts)
        assert "".join(f"/{part}" for part in spelt) == word
        follow({"a": [{"~": 1}], "b": "c"}, parts)


def as_config(body: bytes) -> None:
    config = parse_config(parse_json(body))
    assert parse_config(encode_config(config)) == config


def as_names(data: bytes) -> None:
    word = data.decode("utf-8", "surrogateescape")
    for parse in (parse_stream_name, parse_tenant, parse_reference, parse_stream_id):
        with suppress(InvalidRequest):
            assert parse(word) == word


def as_offset(data: bytes) -> None:
    word = data.decode("utf-8", "surrogateescape")
    for parse in (parse_offset_spec, parse_timestamp):
        with suppress(InvalidRequest):
            parse(word)


QUERY = {"offset": parse_offset_spec, "limit": integer(1, 9), "x": text, "y": boolean}


def as_query(data: bytes) -> None:
    known = {**QUERY, "z": choice("a", "b")}
    assert parse_query({"query_string": data}, known).keys() <= known.keys()


def as_headers(data: bytes) -> None:
    word = data.decode("latin-1")
    found = choose_range(word, 1_000)
    if isinstance(found, ByteRange):
        assert 0 <= found.start <= found.last < 1_000
    etag_matches(word, '"1"', weak=True)
    with suppress(InvalidRequest):
        negotiate(word, ["application/json", "text/plain"])
    with suppress(RefusedError, Denied):
        parse_api_key(bearer_token([(b"authorization", data)]))


def as_tokens(data: bytes) -> None:
    word = data.decode("latin-1")
    with suppress(InvalidRequest):
        assert encode_token(decode_token(word, "default", SECRET), "default", SECRET)
    with suppress(InvalidRequest):
        unseal(word, ["default"], SECRET)


def as_object_keys(data: bytes) -> None:
    word = data.decode("utf-8", "surrogateescape")
    for parse in (
        parse_fragment_key,
        parse_root_key,
        parse_api_key_key,
        parse_generation_key,
        parse_queue_home_key,
        parse_queue_start_key,
    ):
        parse(word)
    batch = parse_file_name(word)
    assert batch is None or parse_file_name(batch.file_name) == batch


def as_answers(data: bytes) -> None:
    """What a connection brings: the same answers whole and byte by byte, and bounded ones."""
    whole = AnswerParser(MIB)
    answers = list(whole.feed(data))
    single = AnswerParser(MIB)
    one_by_one = [answer for byte in data for answer in single.feed(bytes([byte]))]
    assert [each[::2] for each in one_by_one] == [each[::2] for each in answers]
    assert single.begun == whole.begun


def as_answer(data: bytes) -> None:
    """What a client is sent, by whoever answers."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 7):
            yield data[start : start + 7]

    async def read() -> None:
        with suppress(StoreError):
            async for batch in read_batches(pieces()):
                assert type(batch.next_offset) is int

    asyncio.run(read())
    with suppress(orjson.JSONDecodeError):
        problem = orjson.loads(data)
        assert isinstance(error_from_problem(500, problem, retry_after=None), StoreError)


def as_log(data: bytes) -> None:
    """A log as a stop may have left it: what is recovered once is recovered again."""
    # In memory where there is such a place: a run makes many thousand of them.
    fast = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(dir=fast if fast.is_dir() else None))
    files, id_ = RealFileCalls(), parse_stream_id(STREAM_ID)
    try:
        segment_path(top, 1040).write_bytes(data)
        found = recover(files, top, id_, 0)
        again = recover(files, top, id_, 0)
        assert (again.next_offset, again.cut_size) == (found.next_offset, 0)
        assert again.last_timestamp == found.last_timestamp
    finally:
        shutil.rmtree(top)


TABLE = pa.table(
    {
        "value": pa.array([b"one", b"", b"three" * 20], pa.binary()),
        "key": pa.array(["a", None, "c"], pa.string()),
        "headers": pa.array([[("h", b"1")], None, []], pa.map_(pa.string(), pa.binary())),
    }
)


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


JSON_BODY = orjson.dumps(
    {
        "records": [
            {"value": "a", "key": "k", "headers": {"h": "v"}},
            {"value_base64": "AAEC"},
            {"json": {"n": [1, 2.5, None]}, "event_time": "2026-11-21T08:00:00Z"},
        ]
    }
)
WITHIN = Within(key=("c", "id"), key_optional=True, event_time=("at",), event_time_optional=True)
LINES = (
    b'{"c": {"id": 7}, "at": "2026-11-21T08:00:00Z"}\r\n'
    b'{"c": {"id": "x"}, "at": 1750000000000}\n[1, 2.5e3, "\\u00e4"]\n"text"\n'
)
CONFIG = orjson.dumps({"retention": {"max_age": "7D", "max_bytes": 10**9}, "labels": {"a": "b"}})
QUEUE_CONFIG = orjson.dumps(
    {
        "visibility_ms": 60_000,
        "max_bytes": "10 MiB",
        "max_deliveries": 5,
        "dead_letter": {"queue": "dead"},
        "archive": {"stream": "done"},
        "labels": {"a": "b"},
    }
)
RECEIPT = write_receipt(Receipt(bytes(4), 5, 41, 2, bytes(6)))
TERM = as_term(
    (
        Atom("basic_message"),
        (Atom("resource"), b"/", Atom("exchange"), b""),
        [b"jobs"],
        (Atom("content"), 60, Atom("none"), b"\x10\x00\x02", Atom("x"), [b"body", 1.5]),
        [1, -5, 2**70, Pairs(((b"key", []),))],
    )
)
KEYS = "\n".join(
    [
        fragment_key(STREAM_ID, 1040, UID, "default"),
        root_key(STREAM_ID, 1, 3, 17, UID, "default"),
        api_key_key(KeyId("019f9c4a7b20c0ffee123456"), 1, 2),
        generation_key(2),
        queue_home_key("acme", 2),
        queue_start_key(NodeId("0123456789abcdef" * 2), 2),
        f"st_{'0' * 32}.1700000000000.312.2.1.staged",
    ]
).encode()
TOKEN = encode_token(PageToken(STREAM_ID, 10, 5), "default", SECRET).encode()
PAGE_TOKEN = seal(["default"], ["orders"], SECRET).encode()
ANSWER = b'{"offset":0,"value":"a"}\n{"_control":{"next_offset":1,"end":"rotate","gaps":[]}}\n'
ANSWERS = (
    b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: b\r\n\r\n{}"
    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\n{ }\r\n0\r\nC: d\r\n\r\n"
)
IN_PLACE = pa.table(
    {
        "filter_value": ["x", None, "é"],
        "value": [b"a", b"", b"bc"],
        "event_time": pa.array([1, None, 3], pa.timestamp("ms", "UTC")),
        "key": pa.array([b"k", b"", None]),
        "content": pa.array([0, 0, 0], pa.uint8()),
    }
)
OTHER_TYPES = pa.table(
    {
        "value": pa.array(["a", "b" * 20, "c"], pa.string_view()),
        "key": pa.array([b"k", None, b""], pa.large_binary()),
        "filter_value": pa.array(["x", None, "x"]).dictionary_encode(),
    }
)
ENTRIES = b"".join(sub_entry(codec, [b"one", b"another"]) for codec in SubEntryCodec)
OSIRIS = (
    b"OSIL\0\0\0\1"
    + struct.pack(">BBHIqQQIII4x", 0x50, 0, 5, 10, 1, 1, 0, zlib.crc32(ENTRIES), len(ENTRIES), 0)
    + ENTRIES
)


def as_osiris(data: bytes) -> None:
    """A segment of one chunk."""
    check_segment_header(data)
    header = decode_chunk_header(data[SEGMENT_HEADER_SIZE:])
    start = SEGMENT_HEADER_SIZE + CHUNK_HEADER_SIZE + header.filter_size
    chunk = data[start : start + header.data_size]
    verify_data(header, chunk)
    entries = list(entries_of(header, chunk))
    assert sum(len(entry.messages) for entry in entries) == header.record_count


def sealed_osiris(data: bytes) -> bytes:
    """The same with the right checksum of the chunk, where it has one."""
    place = SEGMENT_HEADER_SIZE + 32
    start = SEGMENT_HEADER_SIZE + CHUNK_HEADER_SIZE
    if len(data) < start:
        return data
    crc = zlib.crc32(data[start : start + int.from_bytes(data[place + 4 : place + 8], "big")])
    return data[:place] + crc.to_bytes(4, "big") + data[place + 4 :]


def as_queue_config(data: bytes) -> None:
    config = parse_queue_config(parse_json(data))
    assert parse_queue_config(encode_queue_config(config)) == config


def as_receipt(data: bytes) -> None:
    text = data.decode(errors="replace")
    receipt = read_receipt(text)
    assert receipt is None or write_receipt(receipt) == text


def as_amqp(data: bytes) -> None:
    """A message; as a record it is taken whatever it is, or makes none."""
    collected = Collected(Taking(parse_source("property:group-id"), keep_offsets=True))
    with suppress(InvalidRequest):
        collected.add(data, 7, 1)
        assert collected.take().size > 0
    decode_message(data)


PARSERS = {
    "arrow": Parser(as_arrow, arrow(TABLE)),
    "arrow in place": Parser(as_arrow_in_place, arrow(IN_PLACE)),
    "arrow of other types in place": Parser(as_arrow_in_place, arrow(OTHER_TYPES)),
    "arrow of text": Parser(as_arrow, arrow(pa.table({"value": ["a", "b"]}))),
    "frames": Parser(as_frames, a_frame([b"one", b"two"]) * 2),
    "json": Parser(as_json, JSON_BODY),
    "lines of values": Parser(as_lines, LINES),
    "one value": Parser(as_value, LINES.split(b"\r")[0]),
    "pointer": Parser(as_pointer, b"/a/0/~0~1/b"),
    "gzip": Parser(lambda body: decode_body(body, "gzip", MIB), gzip.compress(JSON_BODY)),
    "zstd": Parser(
        lambda body: decode_body(body, "zstd", MIB),
        pa.compress(JSON_BODY, codec="zstd", asbytes=True),
    ),
    "lz4": Parser(
        lambda body: decode_body(body, "lz4", MIB), pa.Codec("lz4").compress(JSON_BODY).to_pybytes()
    ),
    "config": Parser(as_config, CONFIG),
    "names": Parser(as_names, STREAM_ID.encode()),
    "offset spec": Parser(as_offset, b"timestamp:2026-11-21T08:00:00.123+01:00"),
    "query": Parser(as_query, b"offset=tail:5&limit=3&x=%C3%A4&y=true&z=b"),
    "header": Parser(as_headers, b"bytes=10-20"),
    "credential": Parser(as_headers, b"Bearer sk_019f9c4a7b20c0ffee123456_0123456789abcdef0123"),
    "page token": Parser(as_tokens, TOKEN),
    "sealed page token": Parser(as_tokens, PAGE_TOKEN),
    "object keys": Parser(as_object_keys, KEYS),
    "answer": Parser(as_answer, ANSWER),
    "bytes of a connection": Parser(as_answers, ANSWERS, (NotHttp,)),
    "log": Parser(as_log, golden("segment"), (Corrupt,)),
    "term of RabbitMQ": Parser(decode_term, TERM, (Corrupt,)),
    "config of a queue": Parser(as_queue_config, QUEUE_CONFIG),
    "receipt": Parser(as_receipt, RECEIPT.encode()),
    "segment of RabbitMQ": Parser(as_osiris, OSIRIS, (Corrupt,)),
    **{
        f"message of RabbitMQ {number}": Parser(as_amqp, bytes.fromhex(one["bytes"]), (Corrupt,))
        for number, one in enumerate(MESSAGES)
        if len(one["bytes"]) > 100 and "headers" in one["record"]
    },
}
"""By name, with what they take and how they refuse the rest."""
