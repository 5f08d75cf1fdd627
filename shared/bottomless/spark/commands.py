"""The jobs as commands: `bottomless spark <job>` and `python -m bottomless.spark.<job>`.

They run in this process with a local session, unless a master or options of spark-submit are
named: then the same command is handed to it, with this package beside it. Nothing heavy is
imported before a command runs.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.errors import InvalidRequest, StoreError
from bottomless.extras import how_to_install
from bottomless.spark.command_line import (
    CONNECT,
    URL_VARIABLE,
    Form,
    Master,
    Output,
    RoundSize,
    Stream,
    Submit,
    Url,
    pairs,
    server_of,
    show,
    taking_read,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = dict[str, str]
"""The options of a read; on the command line those of `read_of`."""


@taking_read
def verify(
    context: typer.Context,
    read: Read,
    report: Annotated[
        str | None, typer.Option(help="Directory of the report, in which a killed run continues.")
    ] = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Check every byte in object storage; exit code 1 if something is wrong."""

    is_sound = False

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs.verify import verify as job  # noqa: PLC0415

        nonlocal is_sound
        verdict = job(spark, read, report)
        show(verdict.members(), output_form, name="sound")
        is_sound = verdict.sound

    _run(context, run, master, submit)
    if not is_sound:
        raise typer.Exit(1)


@taking_read
def export(
    context: typer.Context,
    read: Read,
    output: Annotated[str, typer.Argument(help="A directory or URI; for iceberg namespace.table.")],
    form: Annotated[str, typer.Option("--format", help="parquet, delta or iceberg.")] = "parquet",
    columns: Annotated[
        str | None, typer.Option(help="Names, separated by commas; else offset,timestamp,value.")
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(help="Members of JSON values as a column: 'id BIGINT, t STRING'.")
    ] = None,
    catalog: Annotated[str, typer.Option(help="Of pyiceberg's configuration.")] = "default",
    compression: Annotated[str, typer.Option(help="snappy, zstd, lz4, gzip or none.")] = "snappy",
    round_size: RoundSize = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Add what is new of a stream to Parquet files or a table; go on where that ends."""
    options = dict(read)
    options |= {} if columns is None else {"columns": columns}
    options |= {} if json_schema is None else {"jsonSchema": json_schema}

    def run(spark: "SparkSession") -> None:
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
        show(asdict(done), output_form, name="next_offset")

    _run(context, run, master, submit)


@taking_read
def replay(
    context: typer.Context,
    read: Read,
    to: Annotated[str, typer.Argument(help="Name of the stream to write to.")],
    name: Annotated[
        str, typer.Option(help="Name of this replay; repeating it under this name continues it.")
    ],
    to_url: Annotated[str | None, typer.Option(help="Another server for the target.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Only records for which this condition in SQL holds.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(help="An expression in SQL for one column of the sink; repeatable."),
    ] = None,
    records_per_second: Annotated[
        float | None, typer.Option(min=0.01, help="Read no faster than this.")
    ] = None,
    round_size: RoundSize = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Write the records of a range into another stream, each once."""

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs.replay import replay as job  # noqa: PLC0415
        from bottomless.spark.jobs.rounds import ROUND_SIZE  # noqa: PLC0415

        done = job(
            spark,
            read,
            to,
            name,
            to_url=to_url,
            where=where,
            select=select,
            records_per_second=records_per_second,
            round_size=round_size or ROUND_SIZE,
        )
        show(asdict(done), output_form, name="next_offset")

    _run(context, run, master, submit)


@taking_read
def stats(
    context: typer.Context,
    read: Read,
    plot: Annotated[
        str | None, typer.Option(help="Draw rates and sizes into this file, such as stats.png.")
    ] = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Count records, bytes, sizes, rates, keys and filter values."""

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs import stats as job  # noqa: PLC0415
        from bottomless.spark.jobs.stats import check_plot, draw  # noqa: PLC0415

        if plot is not None:
            check_plot(plot)
        found = job(spark, read)
        show(found.members(), output_form, name="records")
        if plot is not None:
            draw(found, plot)

    _run(context, run, master, submit)


def load(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(help="A Parquet file, or a directory or URI with Parquet files.")
    ],
    stream: Stream,
    name: Annotated[
        str, typer.Option(help="Name of this import; repeating it under this name continues it.")
    ],
    url: Url = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="Which column of the files is a record's NAME."),
    ] = None,
    rows_as_json: Annotated[bool, typer.Option(help="The value is the row as JSON.")] = False,
    round_size: RoundSize = None,
    master: Master = None,
    submit: Submit = None,
    output_form: Output = Form.TABLE,
) -> None:
    """Write the rows of Parquet files into a stream, each once."""
    columns = pairs("--column", column)
    server = server_of(context, url)

    def run(spark: "SparkSession") -> None:
        from bottomless.spark.jobs.load import import_parquet  # noqa: PLC0415
        from bottomless.spark.jobs.rounds import ROUND_SIZE  # noqa: PLC0415

        done = import_parquet(
            spark,
            path,
            server(),
            stream,
            name,
            columns=columns,
            whole_rows=rows_as_json,
            round_size=round_size or ROUND_SIZE,
        )
        show(asdict(done), output_form, name="rows")

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
        raise InvalidRequest(f"Spark is not installed: {how_to_install('spark')}")
    if master is not None or submit:
        from bottomless.spark.jobs.submitting import submit_job  # noqa: PLC0415

        raise typer.Exit(submit_job(context, master, submit or []))
    from bottomless.spark.jobs.sessions import own_session  # noqa: PLC0415

    with own_session() as spark:
        job(spark)
