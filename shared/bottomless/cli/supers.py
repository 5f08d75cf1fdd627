"""Super streams: one large stream made of many, which are its partitions."""

from typing import Annotated, Any, Final

import typer

from bottomless.cli.asking import DryRun, Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.meant import note_stream
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Column, Form, Output, line, show, show_list, tell_unreadable
from bottomless.cli.replicas import MinInSync, Replicas, with_replicas
from bottomless.cli.session import open_client
from bottomless.cli.stream_config import taking_config
from bottomless.cli.tiers_option import Tiers, with_tiers
from bottomless.model.limits import PARTITION_COUNT_MAX

_COLUMNS: Final = [
    Column("NAME", lambda item: item["name"]),
    Column("PARTITIONS", lambda item: item["partition_count"]),
    Column("STRATEGY", lambda item: item["strategy"]),
    Column("STATE", lambda item: item["state"]),
    Column("CREATED", lambda item: item["created_at"]),
]
_PARTITIONS: Final = [
    Column("PARTITION", lambda item: item["index"]),
    Column("STREAM", lambda item: item["stream"]),
    Column("KEY", lambda item: item["binding_key"]),
    Column("ID", lambda item: item["stream_id"]),
]

Super = Annotated[str, typer.Argument(help="Name of the super stream.", callback=note_stream)]
Partitions = Annotated[
    int | None,
    typer.Option(
        min=1, max=PARTITION_COUNT_MAX, help="So many; the hash of a record's key says which."
    ),
]
BindingKeys = Annotated[
    list[str] | None,
    typer.Option("--binding-key", help="A partition for the records of this key; repeatable."),
]


def add_to(app: typer.Typer) -> None:
    """Add `super` with its commands to the command line."""
    group = typer.Typer(
        help="Super streams: one large stream made of many, its partitions.", no_args_is_help=True
    )
    group.command(
        "create",
        epilog=examples(
            "super create events --partitions 3",
            "super create sales --binding-key amer --binding-key emea",
            "super create events --partitions 3 --replicas 3",
        ),
    )(_create)
    group.command("ls", epilog=examples("super ls", "super ls -o name"))(_list)
    group.command(
        "describe", epilog=examples("super describe events", "super describe events -o json")
    )(_describe)
    group.command(
        "grow",
        epilog=examples(
            "super grow events --partitions 6 --yes", "super grow sales --binding-key apac"
        ),
    )(_grow)
    group.command(
        "update",
        epilog=examples(
            "super update events --max-age 30d",
            "super update events --tiers default:age=7d,cold",
            "super update events --if-match 5 -o json",
        ),
    )(_update)
    group.command(
        "rm", epilog=examples("super rm events --dry-run", "super rm events --yes --wait")
    )(_remove)
    app.add_typer(group, name="super")


@taking_config
def _create(
    context: typer.Context,
    name: Super,
    config: dict[str, Any],
    partitions: Partitions = None,
    binding_key: BindingKeys = None,
    tiers: Tiers = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    output: Output = Form.TABLE,
) -> None:
    """Create a super stream with its partitions; repeating it with the same options changes nothing.

    The partitions of events are the streams events-0, events-1 and so on. All of them have the
    configuration that is named here.
    """
    if (partitions is None) is (binding_key is None):
        raise typer.BadParameter("give --partitions, or --binding-key for each partition")
    config = with_replicas(with_tiers(config, tiers), replicas, min_in_sync)
    with open_client(context) as client:
        created = client.create_super_stream(
            name, partitions=partitions, binding_keys=binding_key, config=config
        )
    if output is Form.TABLE:
        line(f"{created['name']} {created['super_id']} {_count(created)}")
    else:
        show(created, output, name=created["name"])


def _list(context: typer.Context, output: Output = Form.TABLE) -> None:
    """List super streams; `bottomless ls` lists their partitions too."""
    with open_client(context) as client:
        listed = client.list_super_streams(unreadable=tell_unreadable("name"))
        show_list(listed, _COLUMNS, output)


def _describe(context: typer.Context, name: Super, output: Output = Form.TABLE) -> None:
    """Show a super stream's partitions, and the nodes and drives that they are to be on; as JSON all that
    is known of it.
    """
    with open_client(context) as client:
        described = client.describe_super_stream(name)
    if output is Form.TABLE:
        show_list(described["partitions"], _PARTITIONS, output)
        for said in _places(described):
            line(said)
    else:
        show(described, output, name=name)


def _grow(
    context: typer.Context,
    name: Super,
    partitions: Partitions = None,
    binding_key: Annotated[
        list[str] | None,
        typer.Option("--binding-key", help="One more partition, for this key; repeatable."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept that keys go to other partitions.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Give a super stream more partitions; it never gets fewer.

    With --partitions, which says how many there are then, most keys go to another partition from
    then on: the order of a key holds before and after, and not across. While it grows, which takes
    seconds, it takes no records.
    """
    if (partitions is None) is (binding_key is None):
        raise typer.BadParameter("give --partitions, or --binding-key for each new partition")
    if partitions is not None and not yes:
        raise typer.BadParameter(
            "most keys go to another partition then; --yes accepts that", param_hint="--yes"
        )
    with open_client(context) as client:
        if partitions is not None:
            grown = client.grow_super_stream(name, partitions=partitions, accept_rehash=True)
        else:
            found = client.describe_super_stream(name)
            bound = [one["binding_key"] for one in found["partitions"]]
            keys = [*bound, *(binding_key or [])]
            if None in keys:
                raise typer.BadParameter(
                    "it is divided by the hashes of keys: say --partitions",
                    param_hint="--binding-key",
                )
            grown = client.grow_super_stream(name, binding_keys=keys, etag=found["etag"])
    if output is Form.TABLE:
        line(f"{grown['name']} {grown['super_id']} {_count(grown)}")
    else:
        show(grown, output, name=name)


@taking_config
def _update(
    context: typer.Context,
    name: Super,
    config: dict[str, Any],
    if_match: Annotated[
        str | None,
        typer.Option("--if-match", help="Change it only if this is its etag, from `describe`."),
    ] = None,
    tiers: Tiers = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    output: Output = Form.TABLE,
) -> None:
    """Change the configuration of all partitions of a super stream; options that are not named stay."""
    config = with_replicas(with_tiers(config, tiers), replicas, min_in_sync)
    if not config:
        raise typer.BadParameter("nothing to change is named")
    with open_client(context) as client:
        updated = client.update_super_stream(name, config, etag=if_match or "*")
    if output is Form.TABLE:
        line(f"{updated['name']} {updated['super_id']} {_count(updated)}")
    else:
        show(updated, output, name=name)


def _remove(
    context: typer.Context,
    name: Super,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Delete a super stream with all its partitions and their records.

    The operation that is shown sweeps their objects, after the grace that the server gives to those
    who still read.
    """
    with open_client(context) as client:
        etag: str | None = None
        if dry_run or not yes:
            found = client.describe_super_stream(name)
            summary = f"{name} ({found['super_id']}) with {_count(found)}"
            if dry_run and output is Form.TABLE:
                line(f"would delete {summary}")
            elif dry_run:
                show({"would_delete": found}, output, name=name)
            if dry_run:
                return
            confirm(f"Delete {summary}?", yes)
            # What was confirmed is this very super stream, not a later one of its name.
            etag = found["etag"]
        finish(client, client.delete_super_stream(name, etag=etag), output, wait=wait)


def _places(described: dict[str, Any]) -> list[str]:
    """Where all partitions are to be, in a line each; nothing where it is as it is without being said."""
    said = []
    replicas = described.get("replication", {}).get("replicas", 1)
    if replicas > 1:
        said.append(f"each partition lies on {replicas} nodes")
    if described.get("tiers"):
        drives = ", ".join(tier["drive"] for tier in described["tiers"])
        said.append(f"drives of each partition, the newest records' first: {drives}")
    return said


def _count(described: dict[str, Any]) -> str:
    count = described["partition_count"]
    return "1 partition" if count == 1 else f"{count} partitions"
