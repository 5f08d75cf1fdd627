"""The jobs as commands: `bottomless spark <job>` and `python -m bottomless.spark.<job>`.

They run in this process with a local session, unless a master or options of spark-submit are
named: then the same command is handed to it, with this package beside it. Nothing heavy is
imported before a command runs.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT: Final = "bottomless.spark.connect"
"""Where a program around these leaves what it knows of the server, in the context's `meta`."""
URL_VARIABLE: Final = "BOTTOMLESS_URL"
URL_DEFAULT: Final = "http://127.0.0.1:8080"

Stream = Annotated[str, typer.Argument(help="Name of the stream.")]
Url = Annotated[
    str | None, typer.Option(help=f"The server; else {URL_VARIABLE}.", show_default=URL_DEFAULT)
]
Start = Annotated[
    str | None, typer.Option("--from", help="First offset: earliest, 1040, -1000 or -10m.")
]
End = Annotated[str | None, typer.Option("--until", help="Stop before this offset; as --from.")]
Extra = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Any other option of a read; repeatable."),
]
RoundSize = Annotated[
    int | None,
    typer.Option("--round-bytes", min=1, help="Bytes of the stream that are done at once, about."),
]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs; the command goes there by spark-submit.")
]
Submit = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="A word for spark-submit, such as --submit=--verbose."),
]


class Form(StrEnum):
    """How an answer is shown; as a name only what says most of it."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Output = Annotated[Form, typer.Option("--output", "-o", help="How to show it.")]


def verify(
    context: typer.Context,
    stream: Stream,
    url: Url = None,
    start: Start = None,
    end: End = None,
    report: Annotated[
        str | None, typer.Option(help="Directory of the report, where a killed run goes on.")
    ] = None,
    option: Extra = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Check every byte in object storage; exit code 1 if something is wrong."""
    options = _options(context, url, stream, start, end, option)

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs.verify import verify as job  # noqa: PLC0415

        verdict = job(spark, options, report)
        _show(verdict.members(), output_form, name="sound")
        if not verdict.sound:
            raise typer.Exit(1)

    _run(context, run, master, submit)


def export(
    context: typer.Context,
    stream: Stream,
    output: Annotated[str, typer.Argument(help="A directory or URI; for iceberg namespace.table.")],
    url: Url = None,
    start: Start = None,
    end: End = None,
    form: Annotated[str, typer.Option("--format", help="parquet, delta or iceberg.")] = "parquet",
    columns: Annotated[
        str | None, typer.Option(help="Names with commas between; else offset,timestamp,value.")
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(help="Members of JSON values as a column: 'id BIGINT, t STRING'.")
    ] = None,
    catalog: Annotated[str, typer.Option(help="Of pyiceberg's configuration.")] = "default",
    compression: Annotated[str, typer.Option(help="snappy, zstd, lz4, gzip or none.")] = "snappy",
    round_size: RoundSize = None,
    option: Extra = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Add what is new of a stream to Parquet files or a table; go on where that ends."""
    options = _options(context, url, stream, start, end, option)
    options |= {} if columns is None else {"columns": columns}
    options |= {} if json_schema is None else {"jsonSchema": json_schema}

    def run(spark: "SparkSession") -> None:
        from dataclasses import asdict  # noqa: PLC0415

        from bottomless.spark.jobs.export import ROUND_SIZE  # noqa: PLC0415
        from bottomless.spark.jobs.export import export as job  # noqa: PLC0415

        done = job(
            spark,
            options,
            output,
            form=form,
            catalog=catalog,
            round_size=round_size or ROUND_SIZE,
            compression=compression,
        )
        _show(asdict(done), output_form, name="next_offset")

    _run(context, run, master, submit)


def replay(
    context: typer.Context,
    stream: Stream,
    to: Annotated[str, typer.Argument(help="Name of the stream that is written to.")],
    name: Annotated[
        str, typer.Option(help="Of this replay; again under this name goes on with it.")
    ],
    url: Url = None,
    to_url: Annotated[str | None, typer.Option(help="Another server for the target.")] = None,
    start: Start = None,
    end: End = None,
    where: Annotated[str | None, typer.Option(help="A condition in SQL.")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="An expression in SQL, a column of the sink each.")
    ] = None,
    records_per_second: Annotated[
        float | None, typer.Option(min=0.01, help="No faster than this.")
    ] = None,
    round_size: RoundSize = None,
    option: Extra = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Write the records of a range into another stream, each once."""
    options = _options(context, url, stream, start, end, option)

    def run(spark: "SparkSession") -> None:
        from dataclasses import asdict  # noqa: PLC0415

        from bottomless.spark.jobs.replay import replay as job  # noqa: PLC0415
        from bottomless.spark.jobs.rounds import ROUND_SIZE  # noqa: PLC0415

        done = job(
            spark,
            options,
            to,
            name,
            to_url=to_url,
            where=where,
            select=select,
            records_per_second=records_per_second,
            round_size=round_size or ROUND_SIZE,
        )
        _show(asdict(done), output_form, name="next_offset")

    _run(context, run, master, submit)


def stats(
    context: typer.Context,
    stream: Stream,
    url: Url = None,
    start: Start = None,
    end: End = None,
    plot: Annotated[
        str | None, typer.Option(help="Draw rates and sizes into this file, such as stats.png.")
    ] = None,
    option: Extra = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Count records, bytes, sizes, rates, keys and filter values."""
    options = _options(context, url, stream, start, end, option)

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs import stats as job  # noqa: PLC0415
        from bottomless.spark.jobs.stats import draw  # noqa: PLC0415

        found = job(spark, options)
        _show(found.members(), output_form, name="records")
        if plot is not None:
            draw(found, plot)

    _run(context, run, master, submit)


def load(
    context: typer.Context,
    path: Annotated[str, typer.Argument(help="A Parquet file, or a directory or URI of such.")],
    stream: Stream,
    name: Annotated[str, typer.Option(help="Of this import; again under this name goes on.")],
    url: Url = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="Which column of the files is a record's NAME."),
    ] = None,
    rows_as_json: Annotated[bool, typer.Option(help="The value is the row as JSON.")] = False,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Write the rows of Parquet files into a stream, each once."""
    columns = _pairs("--column", column)
    server = _server(context, url)

    def run(spark: "SparkSession") -> None:
        from dataclasses import asdict  # noqa: PLC0415

        from bottomless.spark.jobs.load import import_parquet  # noqa: PLC0415

        done = import_parquet(
            spark, path, server(), stream, name, columns=columns, whole_rows=rows_as_json
        )
        _show(asdict(done), output_form, name="rows")

    _run(context, run, master, submit)


COMMANDS: Final[Mapping[str, Callable[..., None]]] = {
    "verify": verify,
    "export": export,
    "replay": replay,
    "stats": stats,
    "import": load,
}


def main(job: str | None = None) -> None:
    """Run one of the commands, by the arguments of this process; without a name the first is it."""
    name = job or sys.argv.pop(1)
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command()(COMMANDS[name])
    try:
        app(prog_name=f"python -m bottomless.spark.{name}")
    except StoreError as error:
        sys.stderr.write(f"bottomless: {error}\n")
        sys.exit(1)


def _run(
    context: typer.Context,
    job: Callable[["SparkSession"], None],
    master: str | None,
    submit: list[str] | None,
) -> None:
    connect = context.meta.get(CONNECT)
    if connect is not None and context.params.get("url") is None:
        # As the program around this one has it; the job, here or there, finds it so.
        os.environ[URL_VARIABLE] = connect()
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidRequest("Spark is not installed: pip install 'bottomless[spark]'")
    if master is not None or submit:
        from bottomless.spark.jobs.submitting import submit_job  # noqa: PLC0415

        raise typer.Exit(submit_job(context, master, submit or []))
    from bottomless.spark.jobs.sessions import own_session  # noqa: PLC0415

    with own_session() as spark:
        job(spark)


def _options(
    context: typer.Context,
    url: str | None,
    stream: str,
    start: str | None,
    end: str | None,
    extra: list[str] | None,
) -> dict[str, str]:
    options = _pairs("--option", extra)
    options |= {} if start is None else {"startingOffsets": start}
    options |= {} if end is None else {"endingOffsets": end}
    return options | {"stream": stream, "url": _server(context, url)()}


def _server(context: typer.Context, url: str | None) -> Callable[[], str]:
    def server() -> str:
        connect = context.meta.get(CONNECT)
        if url is None and connect is not None:
            return str(connect())
        return url or os.environ.get(URL_VARIABLE) or URL_DEFAULT

    return server


def _pairs(name: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter("it is NAME=VALUE", param_hint=name)
        pairs[key] = value
    return pairs


def _show(members: Mapping[str, Any], form: Form, *, name: str) -> None:
    """Write the answer to stdout, which carries nothing else."""
    match form:
        case Form.JSON:
            lines = [json.dumps(members, indent=2)]
        case Form.NAME:
            lines = [_text(members[name])]
        case Form.TABLE:
            width = max(map(len, members))
            lines = [f"{each:<{width}}  {_text(value)}" for each, value in members.items()]
    with suppress(BrokenPipeError):
        sys.stdout.write("\n".join(lines) + "\n")


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case dict() | list():
            return json.dumps(value)
    return str(value)
