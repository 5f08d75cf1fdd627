"""The tables of docs/formats.md say what the code does.

Field names of a Struct are the first words of the comments beside its characters.
"""

import re
import struct
from enum import IntEnum, IntFlag
from pathlib import Path
from types import ModuleType

import numpy as np
import orjson
import pytest

from bottomless.formats import (
    api_key,
    batch,
    checks,
    chunk,
    consumers,
    envelope,
    erlang_term,
    fragment,
    fragment_filters,
    keys,
    manifest,
    message,
    message_file,
    osiris,
    segment,
    stream_record,
    super_record,
    tracking,
    wal,
)
from bottomless.formats.batch import FIELDS, Codec
from bottomless.model import limits
from bottomless.model.chunk import AppendMode, ChunkFlags, ChunkKind, TrackedKind
from bottomless.model.fragment import Presence
from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, GapReason, NodeFeatures
from bottomless.model.record import Columns
from bottomless.model.wal import WalFlags
from bottomless_server.leaderless import instance, tail_format
from bottomless_server.leaderless.tail import TailState
from unit.formats.examples import WAL_INSTANCE

DOCS = Path(__file__).parents[3] / "docs"
SPEC = "\n".join(
    (DOCS / name).read_text("utf-8")
    for name in ("formats.md", "rabbitmq-segments.md", "message-files.md")
)
TYPES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i32": "i",
    "i64": "q",
    "bytes16": "16s",
    # The codec turns them by itself.
    "u64 big-endian": "8s",
}
DTYPES = {"u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i64": "<i8", "bytes16": "|V16"}

STRUCTS = [
    ("Chunk", chunk, "_HEADER"),
    ("Trailer entry", chunk, "_ENTRY"),
    ("Tracking entry", tracking, "_ENTRY"),
    ("Batch frame", batch, "_HEADER"),
    ("Arrow message", message, "_PREFIX"),
    ("Segment", segment, "_HEADER"),
    ("Index record", segment, "_RECORD"),
    ("Checkpoint", segment, "_CHECKPOINT"),
    ("Fragment header", fragment, "_HEADER"),
    ("Fragment footer", fragment, "_FOOTER"),
    ("Filter table", fragment_filters, "_TABLE"),
    ("Manifest node", manifest, "_HEADER"),
    ("WAL object", wal, "_HEADER"),
    ("Tail record", tail_format, "_RECORD"),
    ("Tail entry", tail_format, "_ENTRY"),
    ("Held member", tail_format, "_HELD"),
    ("Chunk of osiris", osiris, "_CHUNK"),
    ("Envelope", envelope, "_FIXED"),
]
ENUMS: list[tuple[str, type[IntEnum] | type[IntFlag]]] = [
    ("Chunk kinds", ChunkKind),
    ("Append modes", AppendMode),
    ("Tracked kinds", TrackedKind),
    ("Codecs", Codec),
    ("Entry kinds", EntryKind),
    ("Gap reasons", GapReason),
    ("Node features", NodeFeatures),
    ("Presence", Presence),
    ("Tail states", TailState),
    ("Kinds of chunks of osiris", osiris.ChunkKind),
    ("Codecs of sub-entries", osiris.SubEntryCodec),
    ("Message file", message_file.RecordType),
    ("Terms", erlang_term.Tag),
]
MAGICS = {
    "Chunk": chunk.MAGIC,
    "Batch frame": batch.MAGIC,
    "Segment": segment.SEGMENT_MAGIC,
    "Segment index": segment.INDEX_MAGIC,
    "Checkpoint": segment.CHECKPOINT_MAGIC,
    "Fragment header": fragment.MAGIC,
    "Fragment footer": fragment.FOOTER_MAGIC,
    "Manifest node": manifest.MAGIC,
    "WAL object": wal.MAGIC,
    "Tail record": tail_format.MAGIC,
}


def table(heading: str) -> list[dict[str, str]]:
    """Rows of the first table under a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", SPEC, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines, f"no table under {heading}"
    cells = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in lines[0].splitlines()
    ]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def fields_of(module: ModuleType, name: str) -> list[tuple[int, int, str, str]]:
    """Offset, size, name and character of every field of a Struct, as its source has them."""
    source = Path(str(module.__file__)).read_text("utf-8")
    body = source.split(f"\n{name} = struct.Struct(\n", 1)[1].split("\n)", 1)[0]
    fields, position = [], 0
    for code, comment in re.findall(r'"(\w+)"  # (\w+)', body):
        size = struct.calcsize("<" + code)
        fields.append((position, size, comment, code))
        position += size
    assert position == getattr(module, name).size
    return fields


@pytest.mark.parametrize(("heading", "module", "name"), STRUCTS)
def test_a_header_is_as_its_table_says(heading: str, module: ModuleType, name: str) -> None:
    said = []
    for row in table(heading):
        size = int(row["Size"])
        code = f"{size}x" if row["Type"] == "zero" else TYPES[row["Type"]]
        assert struct.calcsize("<" + code) == size
        said.append((int(row["Offset"]), size, row["Name"], code))
    assert said == fields_of(module, name)


@pytest.mark.parametrize(
    ("heading", "dtype"),
    [
        ("Manifest entry", ENTRY_DTYPE),
        ("Index record", segment.INDEX_RECORD_DTYPE),
        ("Filter line", fragment_filters.LINE_DTYPE),
        ("Piece line", wal.LINE_DTYPE),
        ("Note", wal.NOTE_DTYPE),
    ],
)
def test_an_array_is_as_its_table_says(heading: str, dtype: np.dtype[np.void]) -> None:
    said = [
        (
            int(row["Offset"]),
            int(row["Size"]),
            row["Name"],
            f"|V{row['Size']}" if row["Type"] == "zero" else DTYPES[row["Type"]],
        )
        for row in table(heading)
    ]
    assert dtype.fields is not None
    found = [(f[1], f[0].itemsize, name, f[0].str) for name, f in dtype.fields.items()]
    assert said == sorted(found)


@pytest.mark.parametrize(("heading", "enum"), ENUMS)
def test_numbers_are_as_their_table_says(heading: str, enum: type[IntEnum] | type[IntFlag]) -> None:
    said = {row["Name"]: int(row["Number"]) for row in table(heading)}
    assert said == {member.name: member.value for member in enum}


def test_chunk_flags_are_as_their_table_says() -> None:
    said = {row["Name"]: int(row["Number"]) for row in table("Chunk flags")}
    assert said == {"MORE_FOLLOWS": ChunkFlags.MORE_FOLLOWS}


def test_wal_flags_are_as_their_table_says() -> None:
    said = {row["Name"]: int(row["Number"]) for row in table("WAL flags")}
    assert said == {"SYNC": WalFlags.SYNC}


def test_members_of_an_instance_are_as_their_table_says() -> None:
    members = orjson.loads(instance.encode_instance(WAL_INSTANCE))
    assert [row["Member"] for row in table("WAL instance")] == list(members)


def test_columns_are_as_their_table_says() -> None:
    said = [
        (int(row["Number"]), row["Name"], row["Arrow type"], row["Nullable"] == "yes")
        for row in table("Columns")
    ]
    assert said == [
        (column.value, field.name, re.sub(r" \('.*'\)", "", str(field.type)), field.nullable)
        for column, field in FIELDS.items()
    ]
    assert sum(number for number, *_ in said) == Columns.ALL


def test_magics_are_as_their_table_says() -> None:
    said = {row["Format"]: checks.magic(row["Magic"]) for row in table("Magics")}
    assert said == MAGICS
    for heading, wanted in MAGICS.items():
        if heading != "Segment index":
            [shown] = [row["Meaning"] for row in table(heading) if row["Name"] == "magic"]
            assert checks.magic(shown.split("`")[0]) == wanted


def test_limits_are_as_their_table_says() -> None:
    for row in table("Limits"):
        assert getattr(limits, row["Limit"]) == int(row["Value"])


def test_keys_are_as_their_table_says() -> None:
    assert keys.__doc__ is not None
    for row in table("Keys"):
        assert f"{{prefix}}/{row['Key']}\n" in keys.__doc__


def test_members_of_the_record_are_as_their_table_says() -> None:
    said = [row["Member"] for row in table("Stream record")]
    assert said == ["format", *stream_record.READERS]
    for members in (stream_record.REGISTRY_MEMBERS, consumers.MEMBERS, api_key.OBJECT_MEMBERS):
        assert "\n" + ", ".join(f"`{name}`" for name in members) + "\n" in SPEC


def test_members_of_a_super_record_are_as_their_table_says() -> None:
    said = [row["Member"] for row in table("Super record")]
    assert said == ["format", *super_record.READERS]


def test_the_version_is_in_the_history() -> None:
    # 2 is that of the plan of a commit alone, a file of the node.
    assert [int(row["Version"]) for row in table("Version history")] == [0, checks.VERSION, 2]


def test_headings_that_the_code_cites_exist() -> None:
    headings = set(re.findall(r"^#+ (.+)$", SPEC, re.MULTILINE))
    folder = Path(str(chunk.__file__)).parents[1]
    sources = [
        p.read_text("utf-8") for p in (*folder.glob("formats/*.py"), *folder.glob("model/*.py"))
    ]
    cited = {
        name
        for source in sources
        for tail in re.findall(r"docs/formats\.md, ((?:\"[\w ]+\"(?: and )?)+)", source)
        for name in re.findall(r'"([\w ]+)"', tail)
    }
    assert len(cited) > 10
    assert cited <= headings, cited - headings
