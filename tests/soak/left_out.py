"""What a run of everything leaves out, since it must not take longer than a quarter of an hour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_SCHEMATHESIS: Final = "tests/contract_http/test_schemathesis.py"
_CONTRACT: Final = f"{_SCHEMATHESIS}::test_every_operation_answers_as_its_document_says"
_CHAINS: Final = f"{_SCHEMATHESIS}::test_chains_of_operations_over_all_services_do_too"
_KILLS: Final = (
    "tests/journeys/test_kill.py::test_everything_acknowledged_survives_kill_9_once_and_in_order"
)
_SERVED: Final = (
    "tests/journeys/test_leaderless_served.py"
    "::test_a_leaderless_stream_lives_through_deaths_and_compaction"
)
_A25: Final = (
    "tests/journeys/test_scenarios_instances.py"
    "::test_a25_what_was_acknowledged_is_there_for_every_reader_at_once"
)
_FOLLOW: Final = "tests/journeys/test_follow_one_record.py::test_follow_one_record"
_COMPACTION: Final = (
    "tests/unit/uploader/test_compaction_rounds.py"
    "::test_many_objects_of_many_streams_are_read_once_and_placed_byte_by_byte"
)
_NODES: Final = "tests/journeys/test_leaderless_nodes.py"
_BESIDE: Final = f"{_NODES}::test_two_nodes_write_one_stream_beside_others"
_WAITING: Final = f"{_NODES}::test_readers_that_wait_and_readers_of_everything_disturb_no_append"
_REFUSED: Final = (
    "tests/journeys/test_leaderless_coordination.py"
    "::test_streams_of_a_flush_that_are_refused_take_nothing_of_the_others"
)
_LISTED: Final = (
    "tests/contracts/test_s3_drive.py::test_more_objects_than_one_call_takes_are_listed_and_deleted"
)
_COMINGS: Final = "tests/journeys/test_groups_come_and_go.py"
_SEARCH: Final = (
    "tests/model/test_leaderless_search.py::test_no_order_of_events_breaks_what_must_hold"
)

_MODEL: Final = "tests/model/test_manifest_model.py::test_without_a_guard_the_list_says_otherwise"
_UNIT: Final = "tests/unit/manifest"
_NO_LOOK: Final = "test_without_that_look_the_gap_covers_what_is_durable"
_NO_NAMES: Final = (
    "test_without_the_look_at_what_a_newer_root_names_a_deposed_owners_root_is_believed"
)
_NO_EPOCH: Final = "test_without_the_look_at_the_epoch_a_deposed_owners_fragment_is_adopted"
_TIERS: Final = "tests/model/test_tier_model.py"

_CHAOS: Final = "tests/chaos/test_chaos.py::test_without_a_guard_it_is_noticed"
_SITE: Final = "tests/integration/test_docs_site.py"

_JOB_KILLS: Final = "tests/spark/test_spark_job_kills.py"
_S3_WAYS: Final = "tests/spark/test_spark_s3.py::test_every_way_brings_the_same_rows"
_GUIDE: Final = "tests/spark/test_spark_jobs_guide.py"

_OF_SUPERS: Final = "tests/journeys/test_super_produce.py::test_a_request_that_died_is_stored_once_when_it_comes_again"


_LOSSES: Final = "tests/journeys/test_replica_losses.py"
_EACH_DIES: Final = (
    "test_what_is_acknowledged_lies_on_three_disks_while_each_of_the_replicas_dies_once"
)

_CRASHES: Final = "tests/journeys/test_crash_windows.py"
_DRIVES: Final = "tests/journeys/test_drive_kills.py"
_MADE: Final = (
    f"{_CRASHES}::test_a_super_stream_whose_creation_died_is_whole_before_anybody_finds_it"
)
_UNMADE: Final = (
    f"{_CRASHES}::test_a_deletion_of_a_super_stream_that_died_is_finished_after_the_restart"
)
_GROWN: Final = f"{_CRASHES}::test_a_growth_that_died_is_finished_after_the_restart"

_DIED: Final = {
    "test_every_acknowledged_record_is_there_once_after_a_death_while_publishing": (
        "manifest.publish.before-exec",
        ("manifest.publish.after-groups", "manifest.publish.after-exec"),
    ),
    "test_a_deleter_that_died_leaves_nothing_behind_and_takes_nothing_alive": (
        "manifest.deleter.after-delete",
        ("manifest.deleter.after-condemn", "manifest.deleter.before-settle"),
    ),
    "test_a_collection_that_died_is_finished_and_takes_only_garbage": (
        "manifest.garbage.after-queue",
        ("manifest.garbage.after-bump",),
    ),
    "test_a_rebuild_that_died_is_finished_and_loses_nothing": (
        "manifest.rebuild.after-stream",
        ("manifest.rebuild.before-generation", "manifest.rebuild.after-generation"),
    ),
}
"""Of the points at which a step can die one, and those that are left out: the manifest's model dies
between any two calls of these steps in every run, and the simulation in the middle of rebuilds."""

LEFT_OUT: Final[Mapping[str, str]] = {
    **{
        f"{_CRASHES}::{test}[{point}]": f"{_CRASHES}::{test}[{kept}]"
        for test, (kept, points) in _DIED.items()
        for point in points
    },
    # Every point is one of those where the unit tests cut off too.
    **{
        f"{_DRIVES}::{test}[manifest.drives.{point}]": f"{_DRIVES}::{test}[manifest.drives.{kept}]"
        for test, kept, points in (
            (
                "test_a_registration_that_died_is_gone_on_with_by_the_same_request",
                "after-marker",
                ("after-number", "after-use"),
            ),
            (
                "test_a_retirement_that_died_is_finished_after_the_restart",
                "before-retired",
                ("after-closing", "after-retired"),
            ),
        )
        for point in points
    },
    f"{_MADE}[manifest.super.after-exec]": f"{_MADE}[manifest.super.before-object]",
    f"{_MADE}[manifest.super.after-object]": f"{_MADE}[manifest.super.before-object]",
    f"{_UNMADE}[manifest.super-deletion.after-exec]": (
        f"{_UNMADE}[manifest.super-deletion.after-partition]"
    ),
    f"{_UNMADE}[manifest.super-deletion.after-object]": (
        f"{_UNMADE}[manifest.super-deletion.after-partition]"
    ),
    f"{_UNMADE}[manifest.super-deletion.before-forget]": (
        f"{_UNMADE}[manifest.super-deletion.after-partition]"
    ),
    f"{_GROWN}[manifest.super-growth.after-exec]": f"{_GROWN}[manifest.super-growth.after-owners]",
    f"{_GROWN}[manifest.super-growth.after-second-exec]": (
        f"{_GROWN}[manifest.super-growth.after-owners]"
    ),
    "tests/chaos/test_chaos.py::test_two_uploaders_of_one_stream_leave_no_gap_and_no_overlap": (
        "tests/chaos/test_chaos.py"
        "::test_nothing_is_lost_doubled_or_skipped_while_everything_is_killed"
    ),
    "tests/chaos/test_partition.py::test_a_cut_between_nodes_and_around_each_loses_and_doubles_nothing": (
        "tests/chaos/test_chaos.py"
        "::test_nothing_is_lost_doubled_or_skipped_while_everything_is_killed"
    ),
    "tests/integration/test_how_to.py::test_a_page_does_what_it_says[replicas]": (
        f"{_LOSSES}::{_EACH_DIES}"
    ),
    "tests/journeys/test_replica_supers.py": (
        "tests/unit/ingest/test_super_failover.py"
        "::test_each_record_is_there_once_whichever_owner_is_lost_in_a_request"
    ),
    # The three points of a deletion at which it may die are all in a run of everything.
    "tests/journeys/test_scenarios_deletion.py::test_a_deletion_goes_on_after_kill_9_at_any_moment": (
        f"{_CRASHES}::test_a_deletion_that_died_is_finished_after_the_restart"
    ),
    # Each of these guards is missed by a cheaper run, too.
    f"{_CHAOS}[memory of producers]": (
        "tests/linearizability/test_linearizability.py::test_without_a_guard_they_are_not"
    ),
    f"{_CHAOS}[dirty mark]": (
        "tests/unit/ingest/test_handover.py::test_without_the_dirty_mark_records_would_be_lost"
    ),
    f"{_CHAOS}[durable before answered]": (
        "tests/unit/ingest/test_append_order.py::test_the_check_of_syncs_sees_that_there_are_none"
    ),
    f"{_SITE}::test_every_page_of_the_repository_is_reached_from_the_navigation_of_the_front_page": (
        f"{_SITE}::test_every_page_of_the_repository_stands_in_one_group_of_the_navigation"
    ),
    **{
        f"{_SITE}::{test}[all pages]": f"{_SITE}::{test}[some pages]"
        for test in (
            "test_no_page_has_another_host_to_load_from",
            "test_the_reference_has_every_public_name_of_the_client_and_every_method",
            "test_what_a_docstring_says_is_read_as_markdown",
            "test_a_browser_finds_pages_by_their_words_with_no_server_at_all",
        )
    },
    f"{_LISTED}[moto]": f"{_LISTED}[seaweed]",
    "tests/faults/test_leaderless.py::test_a_round_reads_each_object_once": f"{_COMPACTION}[30-100]",
    # Of each document one way of the two, with identity or without it, stays.
    f"{_CONTRACT}[locked-manifest]": f"{_CONTRACT}[open-manifest]",
    f"{_CONTRACT}[open-ingest]": f"{_CONTRACT}[locked-ingest]",
    f"{_CONTRACT}[locked-reader]": f"{_CONTRACT}[open-reader]",
    f"{_CONTRACT}[open-queues]": f"{_CONTRACT}[locked-queues]",
    f"{_CHAINS}[open]": f"{_CHAINS}[locked]",
    f"{_FOLLOW}[all in one on files]": f"{_FOLLOW}[four processes on S3]",
    # Those on S3 are killed by chaos too.
    f"{_KILLS}[four processes on S3]": f"{_KILLS}[all in one on files]",
    f"{_OF_SUPERS}[ingest.super.after-begin]": f"{_OF_SUPERS}[ingest.super.after-part]",
    f"{_OF_SUPERS}[ingest.super.before-complete]": f"{_OF_SUPERS}[ingest.super.after-part]",
    "tests/journeys/test_super_produce.py"
    "::test_a_request_that_died_before_a_growth_is_stored_once_after_it": (
        "tests/unit/ingest/test_super_produce.py"
        "::test_a_request_that_is_repeated_after_a_growth_is_stored_once"
    ),
    f"{_BESIDE}[8-100]": f"{_BESIDE}[3-4]",
    f"{_WAITING}[1000-100]": f"{_WAITING}[80-20]",
    f"{_NODES}::test_ten_nodes_are_the_first_to_produce_to_one_partition": (
        "tests/unit/ingest/test_ten_producers.py"
        "::test_ten_nodes_that_make_one_partition_at_once_make_one_and_lose_nothing"
    ),
    f"{_REFUSED}[300]": f"{_REFUSED}[60]",
    # Two lives of a broker; what one left lies in tests/golden.
    "tests/integration/test_rabbitmq_import.py": (
        "tests/unit/queues/test_rabbit_golden.py"
        "::test_what_is_imported_is_what_the_broker_would_have_delivered[migrate]"
    ),
    "tests/journeys/test_kill_producers.py": (
        "tests/chaos/test_chaos.py"
        "::test_nothing_is_lost_doubled_or_skipped_while_everything_is_killed"
    ),
    f"{_SERVED}[four processes]": f"{_SERVED}[all in one]",
    f"{_A25}[False]": f"{_A25}[True]",
    (
        "tests/model/test_leaderless.py::test_each_guard_that_is_taken_away_is_missed"
        "[the run of the store that was compared with the bucket]"
    ): (
        "tests/unit/stores/test_older_copies.py"
        "::test_nothing_is_committed_to_a_store_that_was_not_compared_with_the_bucket"
    ),
    # A unit test misses each of these guards, or a cheaper way of the same one is taken away.
    **{
        f"{_MODEL}[{guard}]": test
        for guard, test in (
            (
                "what is adopted before a gap",
                f"{_UNIT}/test_accepted_gaps.py::{_NO_LOOK}",
            ),
            (
                "what a newer root names",
                f"{_UNIT}/test_deposed_owners.py::{_NO_NAMES}",
            ),
            (
                "the epoch that a newer root names",
                f"{_UNIT}/test_deposed_owners.py::{_NO_EPOCH}",
            ),
            ("roots of lost attempts go before groups of theirs", _MODEL),
            ("roots of lost attempts go before what was removed", _MODEL),
        )
    },
    # Those that seeds of the simulation miss are taken away in every run; each has a unit test.
    **{
        f"{_TIERS}::test_without_a_guard_of_drives_the_list_says_otherwise[{guard}]": (
            f"{_TIERS}::test_the_manifest_over_three_drives_is_what_the_list_says"
        )
        for guard in (
            "the move and its session in the EXEC of a relocation",
            "what a mover has copied",
            "the leases of what was moved",
            "the time that a move is left to its session",
            "promoted ranges",
            "a claim before a delete",
            "a drive that is retired takes nothing new",
            "all drives before a gap",
            "what a rebuild did not see is no garbage",
            "all drives in the look of a rebuild",
            "the drives of a stream, in the bucket before anything is on them",
        )
    },
    f"{_SEARCH}[two tasks at once]": f"{_SEARCH}[all that reclaims]",
    "tests/simulation/test_simulation.py::test_each_guard_that_is_taken_away_is_missed": (
        "tests/simulation/test_seeds.py"
        "::test_nothing_acknowledged_is_lost_doubled_or_moved_whatever_befalls_the_services"
    ),
    # Deaths and policies; drives without coordination are in a run of everything.
    **{
        f"tests/journeys/test_tiers.py::{test}": (
            "tests/journeys/test_tiered_streams.py"
            "::test_a_tiered_stream_lives_through_a_death_in_a_move_and_adds_up"
        )
        for test in (
            "test_fragments_move_by_bytes_and_by_age_and_new_ones_go_to_the_first_tier",
            "test_a_move_whose_process_died_is_ended_after_it",
        )
    },
    f"{_COMINGS}::test_a_loss_of_coordination_in_the_middle_gives_no_generation_twice": (
        f"{_COMINGS}::test_each_generation_is_one_members_and_no_deposed_member_commits"
    ),
    "tests/spark/test_spark_canary.py": (
        "tests/spark/test_spark_source.py"
        "::test_one_frame_serves_filters_and_counts_after_each_other"
    ),
    (
        "tests/spark/test_spark_job_mistakes.py"
        "::test_a_command_that_succeeds_says_that_it_starts_spark_and_ends_without_a_traceback"
    ): _GUIDE,
    # A driver of their own dies in the middle of five jobs, and each is done again.
    f"{_JOB_KILLS}::test_a_killed_export_has_each_row_once_in_the_end": (
        f"{_JOB_KILLS}::test_an_export_writes_what_is_missing_of_its_last_round_by_its_plan"
    ),
    f"{_JOB_KILLS}::test_a_killed_replay_writes_each_record_once_in_the_end": (
        "tests/spark/test_spark_sink.py"
        "::test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise"
    ),
    f"{_JOB_KILLS}::test_a_killed_import_writes_each_row_once_in_the_end": (
        "tests/spark/test_spark_sink.py"
        "::test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise"
    ),
    f"{_JOB_KILLS}::test_a_killed_verification_tells_what_one_run_would_have_told": (
        "tests/spark/test_spark_s3_jobs.py"
        "::test_a_verification_finds_what_is_damaged_in_s3_and_reports_to_it"
    ),
    "tests/spark/test_spark_kills.py": _JOB_KILLS,
    # Of five ways those that mode auto comes to as well.
    f"{_S3_WAYS}[direct-right-direct]": f"{_S3_WAYS}[auto-right-direct]",
    f"{_S3_WAYS}[presigned-wrong-presigned]": f"{_S3_WAYS}[auto-wrong-presigned]",
    "tests/spark/test_spark_walk.py": _GUIDE,
    "tests/spark/test_spark_packaging.py::test_a_command_with_a_master_goes_by_spark_submit": (
        "tests/spark/test_spark_packaging.py"
        "::test_executors_work_with_the_archive_pyarrow_numpy_and_an_s3_client_alone"
    ),
    (
        "tests/spark/test_spark_packaging.py"
        "::test_the_shell_is_a_session_that_reads_streams_on_a_machine_without_java"
    ): _GUIDE,
    f"{_COMPACTION}[300-1000]": f"{_COMPACTION}[30-100]",
    **{
        f"tests/spark/test_spark_sink.py::{test}[leaderless{case}]": (
            f"tests/spark/test_spark_sink.py::{test}[local{case}]"
        )
        for test, case in (
            ("test_a_query_writes_each_row_once_over_restarts", ""),
            (
                "test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise",
                "-before",
            ),
            ("test_without_the_idempotent_commit_the_same_death_writes_twice", ""),
            ("test_a_checkpoint_that_was_removed_fails_the_query_and_writes_nothing", ""),
            ("test_the_producer_of_a_query_is_its_app_id_and_the_id_in_its_checkpoint", ""),
        )
    },
}
"""The dearest tests, each with its cheaper relative in every run. Whoever names a file or a folder
gets all of them, and `./dev soak left-out` runs those that are left out."""


def is_everything(places: Sequence[str]) -> bool:
    """Whether a run of these places is one of all tests."""
    return {Path(one).name for one in places} == {"tests"}


def is_left_out(nodeid: str, places: Sequence[str]) -> bool:
    """Whether a test is left out of a run of these places: of everything, and of nothing else."""
    return is_everything(places) and nodeid.startswith(tuple(LEFT_OUT))
