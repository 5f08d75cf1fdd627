"""WAL objects: what keeps them, and what one holds, for an operator who has it as a file.

`ls` asks the server. `show` and `cat` ask nobody: they are for the day on which coordination is lost
and the services refuse everything, and an object is in doubt (docs/runbooks.md).
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.human import size_of
from bottomless.cli.output import Column, Form, Item, Output, show, show_list, write
from bottomless.cli.session import open_client
from bottomless.errors import Corrupt
from bottomless.model.limits import WAL_SIZE_MAX

if TYPE_CHECKING:
    from bottomless.formats.wal import WalDirectory

_STDIN: Final = "-"


def _holders(item: Item) -> str | None:
    held = item.get("held")
    if not held:
        return None
    count = held["stream_count"]
    return f"{count} {'stream' if count == 1 else 'streams'} from {held['sequence']} on"


_COLUMNS: Final = [
    Column("INSTANCE", lambda item: item["instance"]),
    Column("STATE", lambda item: item["state"]),
    Column("OBJECTS", lambda item: item["objects"]),
    Column("SIZE", lambda item: size_of(item["bytes"])),
    Column("OLDEST", lambda item: item["oldest_at"]),
    Column("HELD BY", _holders),
    Column("KEEP UNTIL", lambda item: item.get("keep_until")),
]

File = Annotated[
    str, typer.Argument(help="The object as a file: INSTANCE/SEQUENCE.wal; - for stdin.")
]


def add_to(admin: typer.Typer) -> None:
    """Add `wal` with its commands to the commands for operators."""
    group = typer.Typer(
        help="The newest records of leaderless streams, in objects.", no_args_is_help=True
    )
    group.command("ls", epilog=examples("admin wal ls", "admin wal ls -o json"))(_list)
    group.command("show", epilog=examples("admin wal show 000000000012.wal"))(_show)
    group.command(
        "cat",
        epilog=examples(
            "admin wal cat 000000000012.wal",
            "admin wal cat - --stream 0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11",
        ),
    )(_cat)
    admin.add_typer(group, name="wal")


def _list(context: typer.Context, output: Output = Form.TABLE) -> None:
    """List the writers of WAL objects, and how many streams hold the oldest object of each.

    An object goes only with all earlier ones of its writer. As JSON all that the server tells.
    """
    with open_client(context) as client:
        told = client.describe_wal()
    if output is Form.JSON:
        show(told, output, name="")
        return
    show_list(told["instances"], _COLUMNS, output)
    untold = told["instance_count"] - len(told["instances"])
    if untold:
        tell(f"{untold} more are not described")


def _show(file: File, output: Output = Form.TABLE) -> None:
    """Show what a WAL object says of itself: header, pieces with their streams, and notes."""
    directory, _ = _opened(file)
    header = directory.header
    shown = _header(directory)
    if output is Form.TABLE:
        show(shown, output, name=header.instance)
        write(b"\n")
        show_list(_pieces(directory), _PIECE_COLUMNS, output)
        return
    whole = {**shown, "pieces": [*_pieces(directory)], "notes": [*_notes(directory)]}
    show(whole, output, name=f"{header.instance}/{header.sequence:012d}")


_PIECE_COLUMNS: Final = [
    Column("PIECE", lambda item: item["piece"]),
    Column("STREAM ID", lambda item: item["stream_id"]),
    Column("RECORDS", lambda item: item["record_count"]),
    Column("APPENDS", lambda item: item["append_count"]),
    Column("BYTES", lambda item: item["size_bytes"]),
]


def _header(directory: "WalDirectory") -> dict[str, Any]:
    from bottomless.model.offset_spec import format_timestamp  # noqa: PLC0415
    from bottomless.model.wal import WalFlags  # noqa: PLC0415

    header = directory.header
    return {
        "instance": header.instance,
        "sequence": header.sequence,
        "created_at": format_timestamp(header.created_at),
        "generation": header.generation,
        "noted_below": header.noted_below,
        "notes_waited_for": WalFlags.SYNC in header.flags,
        "piece_count": header.piece_count,
        "note_count": header.note_count,
        "size_bytes": header.size,
    }


def _pieces(directory: "WalDirectory") -> Iterator[dict[str, Any]]:
    for number in range(directory.header.piece_count):
        line = directory.line(number)
        yield {
            "piece": number,
            "stream_id": line.stream_id,
            "record_count": line.record_count,
            "append_count": line.append_count,
            "size_bytes": line.size,
        }


def _notes(directory: "WalDirectory") -> Iterator[dict[str, Any]]:
    for number in range(directory.header.note_count):
        yield directory.note(number)._asdict()


def _cat(
    file: File,
    stream: Annotated[
        str | None,
        typer.Option(help="Only the records of the stream with this id, as `produce` takes them."),
    ] = None,
) -> None:
    """Write the records of a WAL object, one JSON object per line.

    They have no offsets: those came with the commit, if there was one. Each line names the stream's
    id and the piece; with --stream it does not, so that `produce --format records` can take it.
    What is damaged is left out, named on stderr, and the exit code is 1.
    """
    from bottomless.cli.wal_records import records_of  # noqa: PLC0415
    from bottomless.model.names import parse_stream_id  # noqa: PLC0415

    wanted = None if stream is None else parse_stream_id(stream)
    directory, data = _opened(file)
    numbers = range(directory.header.piece_count)
    damaged = 0
    for number in numbers if wanted is None else directory.pieces_of(wanted):
        line = directory.line(number)
        named = {"stream_id": line.stream_id, "piece": number} if wanted is None else {}
        try:
            records = records_of(line, data[line.position : line.position + line.size])
        except Corrupt as error:
            tell(f"piece {number} of stream {line.stream_id} is damaged: {error.message}")
            damaged += 1
            continue
        for record in records:
            write(orjson.dumps({**named, **record}) + b"\n")
    if damaged:
        raise typer.Exit(1)


def _opened(file: str) -> tuple["WalDirectory", memoryview]:
    """Read a whole object, and its directory; ends the program where that cannot be read."""
    from bottomless.formats.wal import decode_directory  # noqa: PLC0415

    if file == _STDIN:
        data = sys.stdin.buffer.read(WAL_SIZE_MAX + 1)
    else:
        with Path(file).open("rb") as source:
            data = source.read(WAL_SIZE_MAX + 1)
    try:
        return decode_directory(data), memoryview(data)
    except Corrupt as error:
        tell(f"{file} is no WAL object, or is damaged: {error.message}")
        raise typer.Exit(1) from error
