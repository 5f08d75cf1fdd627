"""Which process does which tests, where several share a run: `ByFile`."""

from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ONE_SESSION: Final = (
    "tests/spark/",
    "tests/journeys/test_follow_one_record.py",
    "tests/integration/test_how_to.py::test_a_page_does_what_it_says[leaderless0]",
    "tests/integration/test_how_to.py::test_a_page_does_what_it_says[queues]",
)
"""Which tests need Spark: one process runs them all, with one session, whose start takes eight CPU
seconds, and which takes a core for itself."""
OWN_DRIVERS: Final = (
    "tests/spark/test_spark_job_mistakes.py::test_a_command_that_succeeds",
    "tests/spark/test_spark_kills.py",
    "tests/spark/test_spark_packaging.py::test_a_command_with_a_master",
    "tests/spark/test_spark_packaging.py::test_the_shell",
)
"""Where they start drivers of their own instead. No more than these: each begins by itself, and with a server
of its own where its file shares one."""
EACH_APART: Final = (
    "tests/chaos/test_chaos.py",
    "tests/contract_http/test_schemathesis.py",
    "tests/journeys/test_kill.py",
    "tests/model/test_manifest_model.py",
    "tests/simulation/test_simulation.py",
)
"""Long tests that share nothing with the others of their file."""


class ByFile(LoadScopeScheduling):
    """Which tests stay together when several processes share them: those of a file, for the
    servers that they share, and all that need Spark."""

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """What is done is forgotten: else all of it is counted again after each test."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def remove_node(self, node: WorkerController) -> str | None:
        """The test with which a process ended is told as failed, and left: else the next process would
        begin with it, and end with it, until none is begun any more."""
        for unit in self.assigned_work[node].values():
            for name, is_done in unit.items():
                if not is_done:
                    unit[name] = True
                    super().remove_node(node)
                    return name
        return super().remove_node(node)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in EACH_APART or nodeid.startswith(OWN_DRIVERS):
            return nodeid
        return "spark" if nodeid.startswith(ONE_SESSION) else path
