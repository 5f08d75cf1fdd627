"""Keys: create, list, show, rotate and revoke API keys.

A secret is shown once, or put in a file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.output import Column, Form, Output, show, show_list, tell_unreadable
from bottomless.cli.secret_file import SecretFile
from bottomless.cli.session import open_client

if TYPE_CHECKING:
    from collections.abc import Callable

_COLUMNS: Final = [
    Column("KEY", lambda item: item["key_id"]),
    Column("LABEL", lambda item: item["label"]),
    Column("STATE", lambda item: item["state"]),
    Column("SCOPES", lambda item: " ".join(item["scopes"])),
    Column("CREATED", lambda item: item["created_at"]),
    Column("EXPIRES", lambda item: item["expires_at"]),
]

_KeyId = Annotated[
    str, typer.Argument(help="The id of the key, as `keys ls` shows it; not the secret.")
]
_Tenant = Annotated[
    str | None, typer.Option(help="The tenant of the keys; only the operator may name another one.")
]
_SecretFile = Annotated[
    Path | None,
    typer.Option(
        help="Write the secret there, readable for you alone, and show it nowhere; "
        "--token-file takes such a file."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add `keys` with its commands to the command line."""
    group = typer.Typer(help="API keys: who may do what.", no_args_is_help=True)
    group.command(
        "create",
        epilog=examples(
            "keys create --scope append:orders --secret-file shop.key",
            "keys create --label shop --scope read:orders-* --ttl 90D",
        ),
    )(_create)
    group.command("ls", epilog=examples("keys ls"))(_list)
    group.command("show", epilog=examples("keys show 0198d2a45b1e7c3a9a510f7e"))(_show)
    group.command(
        "rotate",
        epilog=examples("keys rotate 0198d2a45b1e7c3a9a510f7e --secret-file shop.key"),
    )(_rotate)
    group.command("revoke", epilog=examples("keys revoke 0198d2a45b1e7c3a9a510f7e"))(_revoke)
    app.add_typer(group, name="keys")


def _create(
    context: typer.Context,
    scope: Annotated[
        list[str],
        typer.Option(
            help="OPERATION, OPERATION:NAME or OPERATION:PREFIX*, of read, append, consume, "
            "describe, manage, delete, locations, admin for streams, and queue-publish, "
            "queue-receive, queue-describe, queue-manage, queue-delete for queues; or * for "
            "everything. Repeatable."
        ),
    ],
    label: Annotated[str, typer.Option(help="A label for people.")] = "",
    ttl: Annotated[
        str | None, typer.Option(help="The time after which the key expires: 90D, 12h, PT1H.")
    ] = None,
    tenant: _Tenant = None,
    secret_file: _SecretFile = None,
    output: Output = Form.TABLE,
) -> None:
    """Create a key and show its secret, this once: nobody can ask for it again."""
    ttl_seconds = None if ttl is None else _seconds(ttl, "--ttl")
    _refuse_to_lose(secret_file, output)
    if secret_file is not None and secret_file.exists():
        raise typer.BadParameter(
            f"{secret_file} is there already, perhaps with a secret", param_hint="--secret-file"
        )
    with open_client(context) as client:
        _show_with_secret(
            lambda: client.create_key(scope, label=label, tenant=tenant, ttl_seconds=ttl_seconds),
            secret_file,
            output,
        )


def _list(context: typer.Context, tenant: _Tenant = None, output: Output = Form.TABLE) -> None:
    """List keys, the oldest first, without their secrets."""
    with open_client(context) as client:
        keys = client.list_keys(tenant=tenant, unreadable=tell_unreadable("key_id"))
        show_list(keys, _COLUMNS, output)


def _show(context: typer.Context, key_id: _KeyId, output: Output = Form.TABLE) -> None:
    """Show a key, without its secret."""
    with open_client(context) as client:
        show(client.show_key(key_id), output, name=key_id)


def _rotate(
    context: typer.Context,
    key_id: _KeyId,
    overlap: Annotated[
        str, typer.Option(help="How long the previous secret stays valid: 1D, 1h; 0s if it leaked.")
    ] = "1h",
    secret_file: _SecretFile = None,
    output: Output = Form.TABLE,
) -> None:
    """Give a key a new secret and show it, this once; a secret file is replaced."""
    overlap_seconds = 0 if overlap in ("0", "0s") else _seconds(overlap, "--overlap")
    _refuse_to_lose(secret_file, output)
    with open_client(context) as client:
        _show_with_secret(
            lambda: client.rotate_key(key_id, overlap_seconds=overlap_seconds), secret_file, output
        )


def _revoke(
    context: typer.Context, key_id: _KeyId, yes: Yes = False, output: Output = Form.TABLE
) -> None:
    """Refuse a key from now on; every service does so within 30 seconds."""
    confirm(f"Refuse the key {key_id} from now on, for good?", yes)
    with open_client(context) as client:
        show(client.revoke_key(key_id), output, name=key_id)


def _show_with_secret(
    ask: "Callable[[], dict[str, Any]]", secret_file: Path | None, output: Form
) -> None:
    """Ask for a secret, and put it where it was wanted before anything else is done."""
    if secret_file is None:
        answer = ask()
        show(answer, output, name=answer["key_id"])
        tell("keep the secret now: it is not shown again")
        return
    with SecretFile(secret_file) as file:
        answer = ask()
        try:
            file.keep(answer.pop("secret"))
        except OSError:
            tell(f"the key {answer['key_id']} is made; rotate it if its secret is nowhere")
            raise
    show(answer, output, name=answer["key_id"])


def _refuse_to_lose(secret_file: Path | None, output: Form) -> None:
    if secret_file is None and output is Form.NAME:
        raise typer.BadParameter(
            "the secret would be lost; name a --secret-file", param_hint="--output"
        )


def _seconds(text: str, named: str) -> int:
    from bottomless.model.duration import parse_duration  # noqa: PLC0415

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=named) from error
