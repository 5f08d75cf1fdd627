"""Queues as an operator has them: what lies on the disk of a node, compaction, a home that is lost."""

from typing import Annotated, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, show
from bottomless.cli.session import open_client

Tenant = Annotated[
    str, typer.Option(help="The tenant whose queues the node that answers is to have.")
]
_DEFAULT: Final = "default"


def add_to(admin: typer.Typer) -> None:
    """Add `queues` with its commands to the commands for operators."""
    group = typer.Typer(help="The nodes on which queues are.", no_args_is_help=True)
    group.command("store", epilog=examples("admin queues store", "admin queues store -o json"))(
        _store
    )
    group.command("compact", epilog=examples("admin queues compact"))(_compact)
    group.command(
        "takeover",
        epilog=examples('admin queues takeover --tenant shop --expect-home "$LOST"'),
    )(_take_over)
    admin.add_typer(group, name="queues")


def _store(context: typer.Context, output: Output = Form.TABLE) -> None:
    """Show what lies on the disk of the node that answers, and what is on its way elsewhere."""
    with open_client(context) as client:
        told = client.queue_store()
    show(told, output, name=told["node_id"])


def _compact(context: typer.Context, output: Output = Form.TABLE) -> None:
    """Have all files with a gap compacted soon, on the node that answers."""
    with open_client(context) as client:
        scheduled = client.compact_queue_store()
    show({"scheduled": scheduled}, output, name=str(scheduled))


def _take_over(
    context: typer.Context,
    expect_home: Annotated[str, typer.Option(help="Id of the data directory that is given up.")],
    tenant: Tenant = _DEFAULT,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Take a tenant's queues from a home that will not come back; what only that held is lost."""
    confirm(f"Give up all queues of {tenant} that only {expect_home} holds, for good?", yes)
    with open_client(context) as client:
        told = client.take_over_queues(tenant, expect_home=expect_home)
    show(told, output, name=told["home"])
