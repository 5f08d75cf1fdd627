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
from bottomless.cli.waiting import SILENT_SECONDS
from bottomless.model.backoff import backoff
from bottomless.model.limits import OFFSET_MAX

if TYPE_CHECKING:
    from bottomless.client import Client

_BAR_SIZE: Final = 24
_NOTHING: Final = "nothing is to be moved"
_NO_TIERS: Final = f"{_NOTHING}: the stream has no tiers"
_FRAGMENTS: Final = "`bottomless fragments ls` shows where fragments begin and end"
_POLL_SECONDS: Final = 0.05
_POLL_SECONDS_MAX: Final = 2.0
_AGAIN_SECONDS: Final = 30.0
"""After so long it is told once more what a wait is for."""


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
        "--wait",
        help="Wait until all that is wanted now has moved, also what there is no room for yet.",
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
    _tell_damaged(told)


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
        line(_NOTHING if has_tiers else _NO_TIERS)
    if output is Form.TABLE:
        _tell_damaged(told)


def _tell_damaged(told: Item) -> None:
    # An older release says nothing of it.
    for one in told.get("damaged", ()):
        line(
            f"damaged on {one['drive']}: {one['from_offset']} to {one['to_offset']}, "
            f"tried again at {one['again_at']}"
        )


def _apply(
    context: typer.Context, stream: Stream, wait: Wait = False, output: Output = Form.TABLE
) -> None:
    """Begin now what the stream's tiers want moved; otherwise a timer does it."""
    with open_client(context) as client:
        _enter(
            client,
            stream,
            lambda: client.evaluate_tiers(stream),
            output,
            wait=wait,
            left_of=lambda _: _fragments_in(client.preview_tiers(stream)["waiting"]),
            nothing=lambda: _NOTHING if "tiers" in client.describe(stream) else _NO_TIERS,
        )


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
        _enter(
            client,
            stream,
            enter,
            output,
            wait=wait,
            nothing=lambda: (
                f"{_NOTHING}: no fragment lies whole between these offsets that is not on {drive}, or "
                f"on its way, already; {_FRAGMENTS}"
            ),
        )


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
            nothing=lambda: (
                f"{_NOTHING}: no fragment lies whole between these offsets that is not in the first "
                f"tier, promoted or on its way already; {_FRAGMENTS}"
            ),
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


def _left_of(entered: Item) -> int:
    """Fragments of what was asked for that got no move, since there was no room."""
    left: int = entered["left"]["fragments"] if "left" in entered else 0
    return left


def _fragments_in(waiting: list[Item]) -> int:
    """Fragments that a policy wants moved and that no move has."""
    return sum(one["fragments"] for one in waiting)


def _enter(
    client: "Client",
    stream: str,
    enter: Callable[[], dict[str, Any]],
    output: Form,
    *,
    wait: bool,
    nothing: Callable[[], str],
    left_of: Callable[[Item], int] = _left_of,
) -> None:
    """Enter moves and show them, or say why there are none; with `wait` go on until all have ended.

    What is left is asked for before the waiting: of a stream that is written a policy wants more
    each minute, and who waited for that too would wait for ever.
    """
    entered = enter()
    moves: list[Item] = list(entered["moves"])
    left = left_of(entered) if wait else _left_of(entered)
    if wait:
        # Where nothing was entered and nothing is under way, to ask again would change nothing.
        while _until_ended(client, stream, entered["moves"]) and left:
            entered = enter()
            moves += entered["moves"]
            left = left_of(entered)
    if left:
        tell(f"{left} fragments are left, for which there was no room yet")
    if output is Form.TABLE and not moves:
        line(nothing())
    else:
        show_list(moves, _MOVES[:-1], output)


def _until_ended(client: "Client", stream: str, entered: list[Item]) -> bool:
    """Wait for the end of moves that were entered, and of those that are under way now.

    Not for those that come meanwhile. Returns false where there is nothing to wait for.
    """
    started = told_at = time.monotonic()
    under_way = client.tiers(stream)["moves"]
    awaited = {one["move"] for one in [*entered, *under_way]}
    looks = 0
    while left := [one for one in under_way if one["move"] in awaited]:
        now = time.monotonic()
        if now - started >= SILENT_SECONDS and (
            told_at == started or now - told_at >= _AGAIN_SECONDS
        ):
            told_at = now
            tell(_waits_for(left))
        time.sleep(backoff(looks, _POLL_SECONDS, _POLL_SECONDS_MAX))
        looks += 1
        under_way = client.tiers(stream)["moves"]
    return bool(awaited)


def _waits_for(moves: list[Item]) -> str:
    copied = sum(1 for one in moves if one["taken_up"])
    return (
        f"moves under way: {len(moves)}; being copied: {copied}; waiting: {len(moves) - copied}, for "
        "an uploader, which looks once a minute by default, or for a drive that is away; Ctrl-C ends "
        "the waiting, not the moves"
    )


def show_bars(told: Item) -> None:
    """Show for each drive what part of a stream's stored bytes lies on it, as `describe` does."""
    whole = sum(one["bytes"] for one in told["drives"]) + told["several"]["bytes"]
    width = max(len(_name_of(one)) for one in told["drives"])
    line("")
    for one in told["drives"]:
        size = round(_BAR_SIZE * one["bytes"] / whole) if whole else 0
        bar = "#" * size + "." * (_BAR_SIZE - size)
        line(f"{_name_of(one):<{width}}  {bar}  {size_of(one['bytes'])}")
