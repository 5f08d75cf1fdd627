"""Jobs: work on whole streams with Spark, as functions.

    from bottomless.spark.jobs import export, import_frame, replay, stats, verify

Each is also a command, `bottomless spark <job>` and `python -m bottomless.spark.<job>`. Work is cut
into pieces on the driver and done in Spark's workers (tasks.py); nothing of ours distributes
anything. A job that was killed is simply started again: how far it got is written where its output
is, never on the machine that it ran on.
"""

from bottomless.spark.jobs.export import export
from bottomless.spark.jobs.load import import_frame, import_parquet
from bottomless.spark.jobs.replay import replay
from bottomless.spark.jobs.stats import stats
from bottomless.spark.jobs.verify import verify

__all__ = ["export", "import_frame", "import_parquet", "replay", "stats", "verify"]
