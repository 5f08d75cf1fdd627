"""`bottomless serve`: the command that runs services. Imports nothing heavy before it runs."""

import gc
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from bottomless_server.runtime.base.loopback import is_loopback

UNAUTHENTICATED: Final = "BOTTOMLESS_ALLOW_UNAUTHENTICATED"


class ServiceName(StrEnum):
    """What runs alone."""

    INGEST = "ingest"
    UPLOADER = "uploader"
    MANIFEST = "manifest"
    READER = "reader"
    QUEUES = "queues"


def command(
    service: Annotated[
        ServiceName | None,
        typer.Argument(help="The one service to run.", show_default="all in one process"),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(envvar="BOTTOMLESS_DATA_DIR", help="Where everything is kept.")
    ] = Path("bottomless-data"),
    port: Annotated[
        int,
        typer.Option(
            envvar="BOTTOMLESS_PORT", min=0, max=65535, help="Public port; 0 takes a free one."
        ),
    ] = 8080,
    host: Annotated[
        str, typer.Option(envvar="BOTTOMLESS_HOST", help="Public address.")
    ] = "127.0.0.1",
) -> None:
    """Run Bottomless: all of it on one port, or one of its services.

    Alone, it needs no other software: data, object store and coordination are kept below the
    data directory, which its first line of log names. It prints `ready http://…` when it takes
    traffic, logs to stderr, and stops cleanly at SIGTERM or Ctrl-C.

    One service of several takes from the environment where the rest is: BOTTOMLESS_STORE_URL
    (file:///directory), BOTTOMLESS_COORDINATION_URL (redis:// or unix://), BOTTOMLESS_MANIFEST_URL
    (its internal listener, http:// or unix://), for ingest BOTTOMLESS_INGEST_URL and for queues BOTTOMLESS_QUEUES_URL (where others
    reach their own), and BOTTOMLESS_<SERVICE>_INTERNAL_LISTEN (host:port or unix:///path).
    """
    # Until there is a loop that hears signals: nothing was answered yet, so this is a clean stop.
    signal.signal(signal.SIGTERM, _stop_before_start)
    raise typer.Exit(_run(service, {"data_dir": data_dir, "port": port, "host": host}))


def _run(service: ServiceName | None, given: dict[str, Any]) -> int:
    # Nothing that is loaded is garbage, and to look for it took a fifth of a start: some 1,700 modules are
    # 160,000 objects. runtime/process/collector.py turns it on, with the first look.
    gc.disable()
    from pydantic import ValidationError  # noqa: PLC0415

    from bottomless.model.plain_reason import plain_reason  # noqa: PLC0415
    from bottomless_server.runtime.base.cannot_start import CannotStart  # noqa: PLC0415
    from bottomless_server.runtime.base.settings import CommonSettings  # noqa: PLC0415
    from bottomless_server.settings_check import check_settings  # noqa: PLC0415

    try:
        settings = CommonSettings(**given)
        check_settings([service] if service else list(ServiceName), os.environ)
        if not (is_loopback(settings.host) or settings.identity or settings.allow_unauthenticated):
            return _fail(
                f"{settings.host} can be reached from other machines and nobody is asked who they "
                f"are; set BOTTOMLESS_IDENTITY=true (docs/identity.md), or {UNAUTHENTICATED}=1 to "
                "serve there all the same"
            )
        if service is None:
            from bottomless_server import allinone  # noqa: PLC0415

            return allinone.run(settings)
        from bottomless_server import single  # noqa: PLC0415

        return single.run(service, settings)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = "_".join(map(str, first["loc"])).upper()
        reason = plain_reason(first["msg"])
        return _fail(f"the setting BOTTOMLESS_{name} is wrong: {reason}")
    except CannotStart as error:
        return _fail(str(error))


def _stop_before_start(_: int, __: FrameType | None) -> None:
    # An exception would be lost where the signal falls into a callback, such as one of a fork.
    # The kernel lets go of the lock, and the embedded Valkey dies with its parent.
    os._exit(0)


def _fail(sentence: str) -> int:
    sys.stderr.write(f"bottomless: cannot start: {sentence}\n")
    raise typer.Exit(1)
