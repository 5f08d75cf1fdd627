"""`bottomless admin compact`: ask an uploader for a round. Imports nothing heavy before it runs.

The path is on the internal listener, which only who runs the services can reach: by a socket of
their user, or by the internal secret. So the command comes with the server and not with the client.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from bottomless.cli.failures import tell
from bottomless.cli.output import Form, Output, line, show
from bottomless.errors import Code, Unavailable

_ROUND_SECONDS: Final = 600.0
"""A round has as many streams as wait, each with 120 s at most, 32 at a time."""
_UNAVAILABLE: Final = 5
"""The exit code of what may succeed later."""


def command(
    uploader: Annotated[
        str | None,
        typer.Option(
            help="Its internal listener, http://host:port or unix:///path.",
            show_default="its socket below --data-dir",
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(envvar="BOTTOMLESS_DATA_DIR", help="Where the services keep everything.")
    ] = Path("bottomless-data"),
    output: Output = Form.TABLE,
) -> None:
    """Make fragments of what waits of leaderless streams, however young it is.

    One round, in the shards of one uploader: as much as fits, the oldest first. Over TCP it shows the
    secret of BOTTOMLESS_INTERNAL_SECRET or BOTTOMLESS_INTERNAL_SECRET_FILE.
    """
    import asyncio  # noqa: PLC0415

    done = asyncio.run(_compact(uploader, data_dir))
    if output is Form.TABLE:
        objects, streams = done["object_count"], done["stream_count"]
        line(f"WAL objects read: {objects}; streams that got fragments: {streams}")
    else:
        show(done, output, name=str(done["stream_count"]))


async def _compact(uploader: str | None, data_dir: Path) -> dict[str, int]:
    from bottomless_server.protocol.compaction import COMPACT, decode_compacted  # noqa: PLC0415
    from bottomless_server.runtime.base.cannot_start import CannotStart  # noqa: PLC0415
    from bottomless_server.runtime.base.settings import CommonSettings  # noqa: PLC0415
    from bottomless_server.runtime.listener.listeners import internal_url  # noqa: PLC0415
    from bottomless_server.runtime.peers.internal_secret import secret_to_send  # noqa: PLC0415
    from bottomless_server.runtime.peers.peers import Peer  # noqa: PLC0415

    url = uploader or internal_url(None, data_dir, "uploader")
    try:
        secret = secret_to_send(CommonSettings(data_dir=data_dir))
        peer = Peer(url, name="uploader", timeout_seconds=_ROUND_SECONDS, secret=secret)
    except (CannotStart, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--uploader") from error
    async with peer:
        try:
            answer = await peer.call("POST", COMPACT)
        except Unavailable as error:
            if error.code is not Code.PEER_UNAVAILABLE:
                raise
            tell(
                f"{error.message} ({error.code}) at {url}; --uploader names its internal listener, "
                "--data-dir the directory in which its socket is"
            )
            raise typer.Exit(_UNAVAILABLE) from error
    return decode_compacted(answer.body)._asdict()
