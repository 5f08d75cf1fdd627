"""`bottomless queue-store`: tools for a store of queues whose service is stopped. Imports nothing heavy before it runs.

They work on the data directory itself, under its lock, so they come with the server and not with the
client.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.output import Column, Form, Output, show, show_list

if TYPE_CHECKING:
    from bottomless_server.queues.offline.findings import Findings
    from bottomless_server.queues.offline.store_directory import StoreDirectory

_FAILED: Final = 1
_UNAVAILABLE: Final = 5
"""The exit code of what may succeed later."""
_QUEUES: Final = "queues"

app = typer.Typer(
    help="Tools for a store of queues whose service is stopped.", no_args_is_help=True
)

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        envvar="BOTTOMLESS_DATA_DIR",
        help="Where the services keep everything; the store is in queues/ below it.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
_DIRECTORY: Final = Path("bottomless-data")


@app.command("scan", epilog=examples("queue-store scan --data-dir bottomless-data -o json"))
def _scan(data_dir: DataDir = _DIRECTORY, output: Output = Form.TABLE) -> None:
    """Show what lies in each message file, by its own bytes; no ledger is needed."""
    from bottomless_server.queues.offline.inspection import scan_files  # noqa: PLC0415

    with _store(data_dir) as store:
        columns = [
            Column("FILE", lambda item: item["file"]),
            Column("BYTES", lambda item: item["size"]),
            Column("MESSAGES", lambda item: item["counts"].get("message", 0)),
            Column("HOLE BYTES", lambda item: item["bytes"].get("hole", 0)),
            Column("DAMAGED", lambda item: item["counts"].get("damaged", 0)),
            Column("LOST BYTES", lambda item: item["bytes"].get("lost", 0)),
        ]
        show_list((one.as_json() for one in scan_files(store)), columns, output)


@app.command("verify", epilog=examples("queue-store verify --data-dir bottomless-data"))
def _verify(data_dir: DataDir = _DIRECTORY, output: Output = Form.TABLE) -> None:
    """Compare the ledger with its files: each message is read and checked. Exits with 1 if something
    is wrong.
    """
    from bottomless_server.queues.offline.inspection import verify_store  # noqa: PLC0415
    from bottomless_server.queues.store.import_mark import check_no_import  # noqa: PLC0415

    with _store(data_dir) as store:
        check_no_import(store.files, store.path)
        ledger = _ledger(store)
        try:
            findings = verify_store(store, ledger)
        finally:
            ledger.close()
        _show_findings(findings, output)
    if findings.counts:
        raise typer.Exit(_FAILED)
    if output is Form.TABLE:
        tell("nothing is wrong")


@app.command(
    "rebuild",
    epilog=examples(
        "queue-store rebuild --data-dir bottomless-data --dry-run",
        "queue-store rebuild --strays from-rabbitmq",
    ),
)
def _rebuild(
    data_dir: DataDir = _DIRECTORY,
    strays: Annotated[
        str | None,
        typer.Option(help="The queue that gets messages of version 1, which name none."),
    ] = None,
    strays_tenant: Annotated[
        str, typer.Option("--strays-tenant", help="Whose that queue is.")
    ] = "default",
    accept_unchecked: Annotated[
        bool,
        typer.Option(
            "--accept-unchecked",
            help="Believe messages without a checksum, where new ones are written without.",
        ),
    ] = False,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Make a lost ledger anew from the message files and the registry.

    Whatever was confirmed and not acknowledged is there again; acknowledged messages that lie in
    files still come again too. Receipts of before are good for nothing.
    """
    from bottomless.model.names import parse_queue_name, parse_tenant  # noqa: PLC0415
    from bottomless_server.queues.offline.rebuild import (  # noqa: PLC0415
        Rebuilding,
        rebuild_store,
    )

    if strays is not None:
        parse_queue_name(strays)
    parse_tenant(strays_tenant)
    with _store(data_dir) as store:
        report = rebuild_store(
            store,
            Rebuilding(strays, strays_tenant, accept_unchecked),
            now=_now(),
            stray_id=os.urandom(16),
            dry_run=dry_run,
        )
    show(report.as_json(), output, name=str(report.item_count + report.stray_count))
    if dry_run and output is Form.TABLE:
        tell("this is what a rebuild would make; nothing was written")


@app.command(
    "new-id",
    epilog=examples("queue-store new-id --data-dir bottomless-data --accept-loss"),
)
def _new_id(
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Give up what was done on a newer copy of this directory."
        ),
    ] = False,
    data_dir: DataDir = _DIRECTORY,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Make this directory the newest copy, where the newer one is lost: after a back-up was put back.

    The store gets a new id: receipts of before are stale. If the other copy comes back after the next
    start on this one, it is refused.
    """
    from bottomless_server.queues.offline.new_id import give_new_id  # noqa: PLC0415

    if not accept_loss and not dry_run:
        tell(
            "whatever a newer copy has confirmed since is lost then, and that copy is refused from the "
            "next start on: say --accept-loss"
        )
        raise typer.Exit(_FAILED)
    fresh = os.urandom(16)
    with _store(data_dir) as store:
        _require_ledger(store)
        if not dry_run:
            give_new_id(store, fresh)
    shown = {"store_id": None if dry_run else fresh.hex(), "changed": not dry_run}
    show(shown, output, name="" if dry_run else fresh.hex())


@app.command("migrate", epilog=examples("queue-store migrate --data-dir bottomless-data --dry-run"))
def _migrate(
    data_dir: DataDir = _DIRECTORY, dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Write all message files of version 1 anew, as files of version 2.

    Those of which a message cannot be read stay; then it exits with 1.
    """
    from bottomless_server.queues.core.start_plan import V1Files  # noqa: PLC0415
    from bottomless_server.queues.store.start import start_store  # noqa: PLC0415

    with _store(data_dir) as store:
        old = sorted(name for name in store.files.names(store.messages) if name.endswith(".rdq"))
        if dry_run:
            show({"files": len(old), "first": old[:10]}, output, name=str(len(old)))
            return
        ledger = _ledger(store)
        try:
            start = start_store(store.files, store.messages, ledger, v1_files=V1Files.MIGRATE)
            ledger.checkpoint()
        finally:
            ledger.close()
    done = start.migration
    shown = {
        "rewritten": len(done.rewritten),
        "messages": done.message_count,
        "kept": [f"{number}.rdq" for number in done.kept],
        "unreadable": done.unreadable_count,
        "reasons": list(done.reasons),
    }
    show(shown, output, name=str(len(done.rewritten)))
    if done.kept:
        raise typer.Exit(_FAILED)


@app.command(
    "import-rabbitmq",
    epilog=examples(
        "queue-store import-rabbitmq node --vhost /=default --dry-run",
        "queue-store import-rabbitmq node --vhost /=shop --rename a=b",
    ),
)
def _import_rabbitmq(
    node: Annotated[Path, typer.Argument(help="The data directory of a node that is stopped.")],
    vhost: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=TENANT: whose the queues of a virtual host are; NAME= leaves it out. For each.",
            show_default=False,
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            help="OLD=NEW or VHOST/OLD=NEW: another name for a queue.", show_default=False
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Leave out what cannot be read, or is missing."),
    ] = False,
    data_dir: DataDir = _DIRECTORY,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Import the messages of a RabbitMQ node's classic queues into an empty store.

    The node's files are only read. An import that was cut off is begun anew by the same command.
    """
    from bottomless_server.queues.offline.rabbit_import import (  # noqa: PLC0415
        Importing,
        import_node,
        plan_queues,
    )
    from bottomless_server.queues.offline.rabbit_survey import survey  # noqa: PLC0415

    tenants = {name: tenant or None for name, tenant in _pairs(vhost, "--vhost")}
    importing = Importing(tenants, dict(_pairs(rename, "--rename")), accept_loss)
    with _refusals():
        found = survey(node)
    if dry_run:
        if output is Form.JSON:
            show(found.as_json(), output, name="")
        else:
            _show_queues(list(found.queues()), output)
        _tell_findings(found.findings)
        with _refusals():
            plan_queues(found, importing)
        return
    with _store(data_dir, make=True) as store:
        report = import_node(store, found, importing, now=_now(), randomness=os.urandom)
    shown = [
        {
            "tenant": queue.tenant,
            "queue": queue.name,
            "vhost": queue.vhost,
            "was": queue.source,
            "messages": queue.message_count,
        }
        for queue in report.queues
    ]
    _show_queues(shown, output)
    _tell_findings(found.findings)


def _show_queues(queues: list[dict[str, Any]], output: Form) -> None:
    columns = [Column(name.upper(), _member(name)) for name in (queues[0] if queues else ())]
    show_list(queues, columns, output, name="queue")


def _tell_findings(findings: "Findings") -> None:
    for kind, count in findings.counts.items():
        tell(f"{count} {kind}; the first: {findings.named(kind)[0]}")


def _member(name: str) -> Callable[[Mapping[str, Any]], object]:
    return lambda item: item[name]


def _pairs(words: list[str] | None, option: str) -> Iterator[tuple[str, str]]:
    for word in words or ():
        name, equals, value = word.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint=option)
        yield name, value


def _now() -> int:
    return time.time_ns() // 1_000_000


def _require_ledger(store: "StoreDirectory") -> None:
    if not store.has_ledger():
        tell(f"{store.path} has no ledger; `bottomless queue-store rebuild` makes a lost one anew")
        raise typer.Exit(_FAILED)


def _ledger(store: "StoreDirectory") -> Any:
    _require_ledger(store)
    return store.open_ledger()


def _show_findings(findings: "Findings", output: Form) -> None:
    shown = [
        {"finding": kind, "count": count, "first": findings.named(kind)}
        for kind, count in findings.counts.items()
    ]
    columns = [
        Column("FINDING", lambda item: item["finding"]),
        Column("COUNT", lambda item: item["count"]),
        Column("FIRST", lambda item: item["first"][0]),
    ]
    show_list(shown, columns, output)


@contextmanager
def _store(data_dir: Path, *, make: bool = False) -> "Iterator[StoreDirectory]":
    """The store below a data directory, under its lock."""
    from bottomless_server.node.file_calls import RealFileCalls  # noqa: PLC0415
    from bottomless_server.queues.offline.store_directory import (  # noqa: PLC0415
        StoreDirectory,
        locked,
    )

    store = StoreDirectory(RealFileCalls(), data_dir / _QUEUES)
    with _refusals():
        if make:
            store.make()
        elif not store.path.is_dir():
            tell(f"there is no {store.path}; --data-dir names the directory of `bottomless serve`")
            raise typer.Exit(_FAILED)
        with locked(store.path):
            yield store


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what was refused or has failed, and end."""
    from bottomless.errors import Corrupt, NotServed  # noqa: PLC0415
    from bottomless_server.queues.core.start_plan import Refused  # noqa: PLC0415
    from bottomless_server.queues.ledger.base import LedgerFailed  # noqa: PLC0415
    from bottomless_server.queues.offline.rabbit_import import ImportRefused  # noqa: PLC0415
    from bottomless_server.queues.offline.rabbit_source import NotANode  # noqa: PLC0415
    from bottomless_server.queues.offline.rebuild import RebuildRefused  # noqa: PLC0415
    from bottomless_server.queues.ports import WriteFailed  # noqa: PLC0415
    from bottomless_server.runtime.base.cannot_start import CannotStart  # noqa: PLC0415

    try:
        yield
    except CannotStart as error:
        tell(str(error))
        raise typer.Exit(_UNAVAILABLE) from error
    except (Refused, ImportRefused, RebuildRefused, NotANode, Corrupt, NotServed) as error:
        tell(str(error))
        raise typer.Exit(_FAILED) from error
    except (OSError, LedgerFailed, WriteFailed) as error:
        tell(f"{type(error).__name__}: {error}")
        raise typer.Exit(_FAILED) from error
