"""Tiers of a stream: what lies on which drive, and what is moved between them."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.human import size_of
from bottomless.cli.output import Column, Form, Item, Output, line, show, show_list
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream
from bottomless.model.backoff import backoff
from bottomless.model.limits import OFFSET_MAX

if TYPE_CHECKING:
    from bottomless.client import Client

_BAR_SIZE: Final = 24
_NOTHING: Final = "nothing is to be moved"
_POLL_SECONDS: Final = 0.05
_POLL_SECONDS_MAX: Final = 2.0


def _name_of(item: Item) -> str:
    return item["drive"] or f"drive {item['number']}"


_TOTALS: Final = [
    Column("FRAGMENTS", lambda item: item["fragments"]),
    Column("STORED", lambda item: size_of(item["bytes"])),
    Column("RECORDS", lambda item: item["records"]),
]
_RANGE: Final = [
    Column("FROM", lambda item: item["from_offset"]),
    Column("TO", lambda item: item["to_offset"]),
    Column("FROM DRIVE", lambda item: item["from_drive"]),
    Column("TO DRIVE", lambda item: item["to_drive"]),
]
_DRIVES: Final = [
    Column("DRIVE", _name_of),
    Column("TIER", lambda item: item["tier"]),
    *_TOTALS,
    Column("FIRST", lambda item: item["first_timestamp"]),
    Column("LAST", lambda item: item["last_timestamp"]),
]
_MOVES: Final = [
    Column("MOVE", lambda item: item["move"]),
    *_RANGE,
    Column("STATE", lambda item: "copying" if item["taken_up"] else "waiting"),
]
_WAITING: Final = [*_RANGE[2:], *_TOTALS]

FromOffset = Annotated[
    int, typer.Argument(min=0, max=OFFSET_MAX, help="The first offset that is meant.")
]
ToOffset = Annotated[
    int, typer.Argument(min=1, max=OFFSET_MAX + 1, help="The offset after the last one.")
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until all of it has moved, also what there is no room for yet."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add `tiers` with its commands to the command line."""
    group = typer.Typer(
        help="On which drives a stream's fragments lie, and moves between them.",
        no_args_is_help=True,
    )
    group.command("show", epilog=examples("tiers show orders", "tiers show orders -o json"))(_show)
    group.command("preview", epilog=examples("tiers preview orders"))(_preview)
    group.command("apply", epilog=examples("tiers apply orders --wait"))(_apply)
    group.command(
        "move",
        epilog=examples("tiers move orders 0 200000 cold", "tiers move orders 0 9 cold --wait"),
    )(_move)
    group.command("promote", epilog=examples("tiers promote orders 0 200000"))(_promote)
    group.command("give-up", epilog=examples("tiers give-up orders 00c0ffee00c0ffee"))(_give_up)
    app.add_typer(group, name="tiers")


def _show(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Show what of a stream lies on which drive, and what is on its way to another one.

    The newest records, which are in no fragment yet, are on no drive.
    """
    with open_client(context) as client:
        told = client.tiers(stream)
    if output is not Form.TABLE:
        show(told, output, name=stream)
        return
    show_list(told["drives"], _DRIVES, output)
    if told["several"]["fragments"]:
        show(told["several"], output, name=stream)
    if told["moves"]:
        line("")
        show_list(told["moves"], _MOVES, output)
    for one in told["promoted"]:
        line(f"promoted: {one['from_offset']} to {one['to_offset']}, until {one['until']}")


def _preview(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Show what the stream's tiers want moved now; changes nothing."""
    with open_client(context) as client:
        told = client.preview_tiers(stream)
        has_tiers = bool(told["waiting"]) or "tiers" in client.describe(stream)
    if output is not Form.TABLE:
        show(told, output, name=stream)
    elif told["waiting"]:
        show_list(told["waiting"], _WAITING, output)
    else:
        line(_NOTHING if has_tiers else f"{_NOTHING}: the stream has no tiers")


def _apply(
    context: typer.Context, stream: Stream, wait: Wait = False, output: Output = Form.TABLE
) -> None:
    """Begin now what the stream's tiers want moved; otherwise a timer does it."""
    with open_client(context) as client:
        _enter(client, stream, lambda: client.evaluate_tiers(stream), output, wait=wait)


def _move(
    context: typer.Context,
    stream: Stream,
    from_offset: FromOffset,
    to_offset: ToOffset,
    drive: Annotated[str, typer.Argument(help="Name of the drive, as `drives ls` shows it.")],
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Move the fragments that lie whole between two offsets to another drive.

    Four moves of 64 fragments may be under way; what is left then is said, and moved by the same
    command later, or with --wait.
    """

    def enter() -> dict[str, Any]:
        return client.move_fragments(stream, from_offset, to_offset, drive)

    with open_client(context) as client:
        _enter(client, stream, enter, output, wait=wait)


def _promote(
    context: typer.Context,
    stream: Stream,
    from_offset: FromOffset,
    to_offset: ToOffset,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Move the fragments that lie whole between two offsets one tier up, for a day.

    How long they stay there is a setting of the server.
    """
    with open_client(context) as client:
        _enter(
            client,
            stream,
            lambda: client.promote_fragments(stream, from_offset, to_offset),
            output,
            wait=wait,
        )


def _give_up(
    context: typer.Context,
    stream: Stream,
    move: Annotated[str, typer.Argument(help="Number of the move, as `tiers show` has it.")],
    output: Output = Form.TABLE,
) -> None:
    """End a move that is under way; its fragments stay where they are.

    If the stream's tiers want it still, it begins anew: change them first.
    """
    with open_client(context) as client:
        client.give_up_move(stream, move)
    if output is Form.TABLE:
        line(f"gave up {move}")
    else:
        show({"move": move}, output, name=move)


def _enter(
    client: "Client",
    stream: str,
    enter: Callable[[], dict[str, Any]],
    output: Form,
    *,
    wait: bool,
) -> None:
    """Enter moves and show them; with `wait` go on until nothing is left to enter or under way."""
    entered = enter()
    moves: list[Item] = list(entered["moves"])
    if wait:
        while _until_ended(client, stream) and _is_more(entered):
            entered = enter()
            moves += entered["moves"]
    elif entered.get("left", {}).get("fragments"):
        tell(f"{entered['left']['fragments']} fragments are left, for which there was no room yet")
    if output is Form.TABLE and not moves:
        line(_NOTHING)
    else:
        show_list(moves, _MOVES[:-1], output)


def _until_ended(client: "Client", stream: str) -> bool:
    """Wait until no move of a stream is under way, which is then true."""
    looks = 0
    while client.tiers(stream)["moves"]:
        time.sleep(backoff(looks, _POLL_SECONDS, _POLL_SECONDS_MAX))
        looks += 1
    return True


def _is_more(entered: Item) -> bool:
    """Whether the same request may enter more moves. What a policy wants is asked for until there is
    none; what somebody asked for is not taken up again after all of it was entered once."""
    left = entered.get("left")
    return bool(entered["moves"] if left is None else left["fragments"])


def show_bars(told: Item) -> None:
    """Show for each drive what part of a stream's stored bytes lies on it, as `describe` does."""
    whole = sum(one["bytes"] for one in told["drives"]) + told["several"]["bytes"]
    width = max(len(_name_of(one)) for one in told["drives"])
    line("")
    for one in told["drives"]:
        size = round(_BAR_SIZE * one["bytes"] / whole) if whole else 0
        bar = "#" * size + "." * (_BAR_SIZE - size)
        line(f"{_name_of(one):<{width}}  {bar}  {size_of(one['bytes'])}")
