"""What outputs that are tables have in common: a commit of the table is all that makes rows visible."""

from bottomless.spark.jobs import places
from bottomless.spark.jobs.outputs import Cut, Round


class TableOutput:
    """An output of an export whose files count from the table's commit on, and never before."""

    def plan(self, planned: Round) -> None:
        """Do nothing: a commit needs no plan before it."""
        # What is not committed is not there: nothing has to be remembered of it.

    def file_name(self, cut: Cut) -> str:
        """Make the name of a file below the table; it is a new one each time."""
        return f"part-{cut[0]:020d}-{cut[1]:020d}-{places.a_name()}.parquet"
