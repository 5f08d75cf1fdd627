"""Operations: the state of work that was accepted, and waiting for its end."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Column, Form, Output, show, show_list
from bottomless.cli.session import open_client
from bottomless.cli.waiting import wait_for

if TYPE_CHECKING:
    from bottomless.client import Client

Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait until the operation is finished; says what it waits for."),
]


class State(StrEnum):
    """What becomes of an operation."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_COLUMNS: Final = [
    Column("OPERATION", lambda item: item["operation_id"]),
    Column("KIND", lambda item: item["kind"]),
    Column("STATE", lambda item: item["state"]),
    Column("CREATED", lambda item: item["created_at"]),
]


def add_to(app: typer.Typer) -> None:
    """Add `operations` with its commands to the command line."""
    group = typer.Typer(
        help="Work that was accepted and continues by itself.", no_args_is_help=True
    )
    group.command("ls", epilog=examples("operations ls", "operations ls --state running"))(_list)
    group.command(
        "show",
        epilog=examples(
            "operations show op_0198d2a45b1e7c3a9a510f7e6f0d2c11",
            "operations show op_0198d2a45b1e7c3a9a510f7e6f0d2c11 --wait",
        ),
    )(_show)
    app.add_typer(group, name="operations")


def _list(
    context: typer.Context,
    state: Annotated[
        State | None, typer.Option(help="Only those in this state.", show_default=False)
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """List operations, the newest first; finished ones are kept for seven days."""
    with open_client(context) as client:
        listed = client.list_operations(state=None if state is None else state.value)
        show_list(listed, _COLUMNS, output)


def finish(
    client: "Client", accepted: Mapping[str, Any], form: Form, *, wait: bool
) -> Mapping[str, Any] | None:
    """Show the operation that was accepted; with `wait`, wait for its end and return its result.

    Raises:
        StoreError: with `wait`: the operation failed.
    """
    operation_id = accepted["operation_id"]
    if not wait:
        show(accepted, form, name=operation_id)
        return None
    return settled(wait_for(client, operation_id), form)


def settled(operation: Mapping[str, Any], form: Form) -> Mapping[str, Any] | None:
    """Show a finished operation and return its result.

    Raises:
        StoreError: the operation failed, for this reason.
    """
    from bottomless.client.problems import error_from_problem  # noqa: PLC0415

    seen = operation
    if form is Form.TABLE and operation["result"] is not None:
        # The result says all of it again, and more.
        seen = {name: member for name, member in operation.items() if name != "progress"}
    show(seen, form, name=operation["operation_id"])
    if operation["state"] == "failed":
        raise error_from_problem(500, operation["error"])
    result: Mapping[str, Any] | None = operation["result"]
    return result


def _show(
    context: typer.Context,
    operation_id: Annotated[str, typer.Argument(help="The id of the operation: op_…")],
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Show an operation; exits with an error if it failed."""
    with open_client(context) as client:
        operation = wait_for(client, operation_id) if wait else client.operation(operation_id)
        settled(operation, output)
