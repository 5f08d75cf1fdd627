"""What needs length: each run is a command, as somebody could type it, with more of what the
everyday tests do a little of. docs/guarantees.md, "Long runs", has the last results."""

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from soak.left_out import LEFT_OUT


class Run(NamedTuple):
    title: str
    command: list[str]
    settings: Mapping[str, str] = {}
    tests: str = ""
    """The test that does the same a little of, in every run of `./dev test`."""


def _test(title: str, test: str, **settings: str) -> Run:
    command = [sys.executable, "-m", "pytest", "-s", *test.split()]
    return Run(title, command, settings, test)


def _module(title: str, *words: str, tests: str) -> Run:
    return Run(title, [sys.executable, "-m", *words], tests=tests)


SEEDS: Final = "tests/simulation/test_seeds.py"
SIMULATION: Final = "tests/simulation/test_simulation.py"

RUNS: Final[dict[str, Run]] = {
    "chaos": _module(
        "1,000 kills of services under load, beside all other troubles",
        *("chaos", "--kills", "1000", "--pause", "0.2"),
        tests="tests/chaos/test_chaos.py",
    ),
    "replica-chaos": _module(
        "500 kills of services of streams that three nodes hold, with disks that are lost for good",
        *("chaos", "--nodes", "3", "--replicas", "3", "--lose-disks", "--kills", "500"),
        tests="tests/chaos/test_chaos.py",
    ),
    "kills": _test(
        "200 deaths of everything, and of each service",
        "tests/journeys/test_kill.py tests/journeys/test_kill_staged.py",
        BOTTOMLESS_TEST_KILLS="200",
    ),
    "producers": Run(
        "200 deaths under strict producers",
        [sys.executable, "-m", "pytest", "-s", "tests/journeys/test_kill_producers.py"],
        {"BOTTOMLESS_TEST_PRODUCER_KILLS": "200"},
        tests="tests/chaos/test_chaos.py",
    ),
    "spark": _test(
        "jobs of Spark that die three times each",
        "tests/spark/test_spark_job_kills.py tests/spark/test_spark_kills.py",
        BOTTOMLESS_TEST_KILLS="3",
    ),
    "seeds": _module(
        "200 simulated seeds, with as much trouble as by hand",
        *("simulation", "1..200"),
        tests=SEEDS,
    ),
    "losses": _module(
        "40 simulated seeds of lost homes and lost coordination",
        *("simulation", "1..40", "--troubles", "losses"),
        tests=SIMULATION,
    ),
    "leaderless": _module(
        "40 simulated seeds of leaderless streams alone",
        *("simulation", "1..40", "--troubles", "leaderless"),
        tests=SEEDS,
    ),
    "members": _module(
        "100 simulated seeds of a group of members in all troubles",
        *("simulation", "1..100", "--group"),
        tests=SIMULATION,
    ),
    "supers": _module(
        "100 simulated seeds of a super stream that grows, and a group that shares it",
        *("simulation", "1..100", "--super"),
        tests=SIMULATION,
    ),
    "tables": _module(
        "tables of services after thousands of streams", "simulation", "tables", tests=SIMULATION
    ),
    "model": _test(
        "1,000,000 steps of the manifest beside a list",
        "tests/model/test_manifest_model.py::test_the_manifest_is_what_the_list_says",
        BOTTOMLESS_MODEL_STEPS="1000000",
    ),
    "tier-model": _test(
        "100,000 steps of the manifest over three drives beside a list",
        "tests/model/test_tier_model.py::test_the_manifest_over_three_drives_is_what_the_list_says",
        BOTTOMLESS_MODEL_STEPS="100000",
    ),
    "leaderless-model": _test(
        "60 runs of leaderless streams beside a list, and as many with a loss of coordination",
        "tests/model/test_leaderless.py",
        BOTTOMLESS_LEADERLESS_SEEDS="60",
    ),
    "leaderless-writers": _test(
        "60 runs of two leaderless writers that are killed and sleep, beside a list, three ways each",
        "tests/model/test_leaderless_writers.py",
        BOTTOMLESS_MODEL_WRITERS="60",
    ),
    "put-back": _test(
        "3,150 orders of events around an older copy of coordination that is put back",
        "tests/model/test_put_back_orders.py"
        "::test_no_order_of_events_gives_an_offset_twice_or_moves_what_was_seen",
        BOTTOMLESS_TEST_PUT_BACK_EVENTS="2",
    ),
    "put-back-debts": _test(
        "500 seeds in which writers lose the replies of commits, and an older copy comes back",
        "tests/unit/ingest/leaderless/test_put_back_debts.py"
        "::test_whatever_was_lost_by_whomever_stays_as_it_was_seen",
        BOTTOMLESS_TEST_PUT_BACK_SEEDS="500",
    ),
    "comings": _test(
        "30 members of a group that come and go on a real server, 40 times each",
        "tests/journeys/test_groups_come_and_go.py",
        BOTTOMLESS_TEST_MEMBERS="30",
        BOTTOMLESS_TEST_LIVES="40",
    ),
    "groups": _test(
        "1,000,000 steps of a consumer group",
        "tests/model/test_consumer_groups.py::test_a_generation_has_one_holder_and_a_partition_a_live_one_soon",
        BOTTOMLESS_MODEL_STEPS="1000000",
    ),
    "values": _test(
        "1,000,000 steps of a tree with filters beside the values of all records",
        "tests/model/test_filter_model.py::test_no_record_that_is_asked_for_is_ever_left_out",
        BOTTOMLESS_MODEL_STEPS="1000000",
    ),
    "compaction": _test(
        "100,000 states of a disk after losses of power in a compaction of message files, and"
        " 2,000 histories of their store",
        "tests/unit/queues/test_compaction_crashes.py"
        "::test_whatever_a_loss_of_power_leaves_of_a_compaction_shows_every_message"
        " tests/unit/queues/test_store_model.py",
        BOTTOMLESS_TEST_CRASHES="100000",
        BOTTOMLESS_TEST_STORE_HISTORIES="2000",
    ),
    "queue-homes": _test(
        "deaths of a server at every step of founding, start, stop and takeover of a home of queues",
        "tests/journeys/test_kill_homes.py",
        BOTTOMLESS_TEST_KILLS="1",
    ),
    "queue-kills": _test(
        "500 kills of a process with the engine of queues, and of a server under queues over HTTP",
        "tests/unit/queues/test_engine_kills.py tests/journeys/test_kill_queues.py",
        BOTTOMLESS_TEST_KILLS="500",
    ),
    "queue-import": _test(
        "an import of 1,000,000 messages of a RabbitMQ node, and its memory",
        "tests/unit/queues/test_rabbit_import_many.py",
        BOTTOMLESS_TEST_IMPORTED="1000000",
    ),
    "replica-seeds": _module(
        "100 simulated seeds of three ingest nodes that hold every stream",
        *("simulation", "1..100", "--replicas", "3"),
        tests="tests/simulation/test_replica_seeds.py",
    ),
    "tier-seeds": _module(
        "50 simulated seeds of streams whose fragments move between three drives",
        *("simulation", "1..50", "--tiers", "2", "--storm-seconds", "10"),
        tests="tests/simulation/test_tier_seeds.py",
    ),
    "super-replica-seeds": _module(
        "80 simulated seeds of a super stream that three ingest nodes hold while it grows",
        *("simulation", "1..80", "--super", "--replicas", "3"),
        tests=SIMULATION,
    ),
    "drive-seeds": _module(
        "41 simulated seeds of three drives of which some are lost for good",
        # In the last one much is to be deleted at once.
        *("simulation", ",".join(map(str, [*range(1, 41), 1005]))),
        *("--tiers", "3", "--troubles", "drives"),
        tests="tests/simulation/test_tier_seeds.py",
    ),
    "queue-seeds": _module(
        "100 simulated seeds of two nodes of queues in all troubles",
        *("simulation", "1..100", "--queues"),
        tests=SIMULATION,
    ),
    "queue-model": _test(
        "20,000 steps of the engine of queues beside plain lists",
        "tests/model/test_queue_model.py::test_queues_are_what_the_lists_say",
        BOTTOMLESS_MODEL_STEPS="20000",
    ),
    "replicas": _test(
        "1,000,000 steps of nodes with replicas of one stream, by their pure decisions, and 200 times two"
        " nodes that follow three streams over HTTP",
        "tests/model/test_replica_model.py::test_what_was_shown_is_on_all_that_are_in_sync"
        " tests/unit/ingest/test_replicator.py",
        BOTTOMLESS_REPLICA_STEPS="1000000",
        BOTTOMLESS_TEST_ROUNDS="200",
    ),
    "filtered": _test(
        "20,000 pages with a filter while everything moves",
        "tests/model/test_filtered_reads.py::test_a_filtered_read_is_what_the_list_says_while_everything_moves",
        BOTTOMLESS_MODEL_STEPS="20000",
    ),
    "histories": _test(
        "50 histories of clients, looked at for an order",
        "tests/linearizability/test_linearizability.py tests/linearizability/test_replicas.py",
        BOTTOMLESS_TEST_ROUNDS="50",
    ),
    "left-out": Run(
        "the dearest tests, once each, which a run of everything leaves out",
        [sys.executable, "-m", "pytest", "-s", *LEFT_OUT],
        tests=" ".join(LEFT_OUT.values()),
    ),
    "memory": _test(
        "memory over thirty attacks",
        "tests/journeys/test_memory.py",
        BOTTOMLESS_TEST_ATTACKS="30",
    ),
    "faults": _test(
        "faults of the object store at random for ten minutes",
        "tests/faults/test_mix.py",
        BOTTOMLESS_TEST_SECONDS="600",
    ),
    "load": Run(
        "1,000 leaderless streams for half an hour while everything is killed in turn",
        ["./dev", "loadtest", "run", "soak"],
        tests="tests/journeys/test_loadtest.py",
    ),
    "contract": _test(
        "60 examples of each operation of the contract",
        "tests/contract_http/test_schemathesis.py",
        BOTTOMLESS_TEST_EXAMPLES="60",
    ),
    "rounds": _test(
        "5,000 stories of rounds of queues, with hang-ups, faults and stops at any moment",
        "tests/unit/queues/test_rounds_stories.py",
        BOTTOMLESS_TEST_STORIES="5000",
    ),
    "ledger": _test(
        "2,000 kills and losses of power in the file calls of SQLite, 2,000 in those of a whole"
        " store of queues, and 500 kills of a process",
        "tests/unit/queues/test_ledger_power_losses.py"
        " tests/unit/queues/test_store_power_losses.py tests/unit/queues/test_ledger_kills.py",
        BOTTOMLESS_TEST_POWER_LOSSES="2000",
        BOTTOMLESS_TEST_KILLS="500",
    ),
    "properties": _test(
        "1,000 examples of each property, other ones than in everyday runs",
        "tests/unit -n logical",
        BOTTOMLESS_TEST_PROPERTIES="1000",
        BOTTOMLESS_TEST_EXAMPLES="200",
        BOTTOMLESS_FUZZ_EXAMPLES="1000",
    ),
    "fuzz": Run(
        "bytes for every decoder and parser, one hour in all",
        ["./dev", "fuzz", "3600"],
        tests="tests/fuzz/test_targets.py",
    ),
}
