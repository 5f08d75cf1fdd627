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
}
"""Of the points at which a step can die one, and those that are left out: the manifest's model dies
between any two calls of these steps in every run, and the simulation in the middle of rebuilds."""

_CHEAPER: Final[Mapping[str, Mapping[str, str]]] = {
    "tests/contract_http/test_schemathesis.py": {
        "test_every_bound_of_a_parameter_is_kept_as_its_document_says": (
            "tests/contract_http/test_strictness.py::test_integers_that_are_only_nearly_some"
        ),
    },
    "tests/journeys/test_crash_windows.py": {
        "test_a_rebuild_that_died_is_finished_and_loses_nothing": (
            "tests/simulation/test_simulation.py"
            "::test_nothing_but_what_an_operator_gave_up_is_lost_with_homes_and_coordination"
        ),
        "test_a_rebuild_that_died_among_keys_brings_all_of_them_back": (
            "tests/unit/manifest/test_key_rebuild.py::test_a_reconciliation_that_died_is_done_again"
        ),
        "test_a_secret_that_was_never_shown_takes_nothing_from_the_one_before": (
            "tests/unit/manifest/test_key_rebuild.py::test_whenever_the_process_dies_a_key_that_was_shown_is_there"
        ),
        "test_a_revocation_that_died_is_finished_and_outlives_coordination[manifest.keys.after-revocation-object]": (
            "tests/unit/manifest/test_key_rebuild.py::test_whenever_the_process_dies_what_was_told_of_a_key_holds"
        ),
        "test_a_takeover_that_died_is_finished_and_gives_no_offset_away_twice[manifest.takeover.after-fence-True]": (
            "[manifest.takeover.after-fence-False]"
        ),
        "test_a_takeover_that_died_is_finished_and_gives_no_offset_away_twice[manifest.takeover.after-gap-False]": (
            "[manifest.takeover.after-fence-False]"
        ),
        "test_every_acknowledged_record_is_there_once_after_a_death_while_publishing[uploader.put.after-object]": (
            "[manifest.publish.before-exec]"
        ),
        "test_a_retention_that_died_is_finished_and_takes_nothing_else[manifest.retention.after-cut]": (
            "[manifest.retention.before-cut]"
        ),
    },
    "tests/journeys/test_four_processes.py": {
        "test_each_service_dies_once_and_no_record_is_lost_or_doubled": (
            "tests/chaos/test_chaos.py::test_nothing_is_lost_doubled_or_skipped_while_everything_is_killed"
        ),
    },
    "tests/journeys/test_scenarios_torn.py": {
        "test_rotten_bytes_are_found_before_they_are_served_and_the_rest_stays_readable": (
            "tests/unit/ingest/test_recovery.py"
        ),
    },
    "tests/journeys/test_scenarios_retention.py": {
        "test_a_lease_holds_what_is_trimmed_until_it_is_given_back[leaderless]": "[local]",
        "test_a_preview_changes_nothing_and_is_what_an_evaluation_removes[leaderless]": "[local]",
        "test_a_trim_goes_to_the_start_of_the_fragment_and_never_further[leaderless]": "[local]",
        "test_a_cut_inside_a_group_keeps_the_group_and_whole_groups_go_with_all_below": (
            "tests/model/test_manifest_model.py::test_the_manifest_is_what_the_list_says"
        ),
    },
    "tests/journeys/test_scenarios_repair.py": {
        "test_orphans_on_s3_go_when_they_are_old_enough": (
            "tests/unit/manifest/test_garbage.py::test_planted_orphans_go_and_everything_live_stays"
        ),
        "test_planted_orphans_go_and_a_stream_cut_in_part_stays": (
            "tests/unit/manifest/test_garbage.py::test_planted_orphans_go_and_everything_live_stays"
        ),
        "test_nothing_of_a_deleted_stream_is_an_orphan": (
            "tests/unit/manifest/test_garbage.py::test_what_a_deleted_stream_left_goes_and_its_tombstone_last"
        ),
    },
    "tests/journeys/test_scenarios_damage.py": {
        "test_after_a_restart_a_missing_root_is_an_alarm_and_nothing_is_put_in_its_place": (
            "tests/unit/manifest/test_rebuild.py::test_a_missing_root_is_an_alarm_and_what_is_there_comes_back"
        ),
    },
    "tests/journeys/test_scenarios_deletion.py": {
        "test_a_stream_on_s3_is_swept_to_the_last_object": (
            "::test_all_of_many_fragments_are_gone_after_the_grace"
        ),
        "test_a_deletion_goes_on_after_kill_9_before_its_tombstone_is_in_the_bucket": (
            "tests/unit/manifest/test_deletion.py::test_a_crash_before_the_tombstone_object_is_mended_before_anything_goes"
        ),
        "test_a_deletion_goes_on_after_kill_9_in_the_middle_of_a_page": (
            "tests/unit/manifest/test_deletion.py::test_a_crash_in_each_page_is_gone_on_from"
        ),
        "test_a_deletion_goes_on_after_kill_9_in_each_of_its_waits[settings1-waiting again]": (
            "[settings0-waiting]"
        ),
    },
    "tests/journeys/test_scenarios_append.py": {
        "test_many_clients_get_dense_offsets_in_their_own_order": (
            "tests/unit/ingest/test_append.py::test_appends_at_once_get_dense_offsets_and_keep_their_order"
        ),
    },
    "tests/journeys/test_scenarios_read.py": {
        "test_a_walk_over_a_thousand_records_by_seven[tail, restarted]": (
            "::test_a_walk_sees_every_record_once_and_in_order"
        ),
        "test_a_walk_over_a_thousand_records_by_seven[object storage, restarted]": (
            "::test_a_walk_sees_every_record_once_and_in_order"
        ),
        "test_a_walk_over_a_thousand_records_by_seven[leaderless tail, restarted]": (
            "::test_a_walk_sees_every_record_once_and_in_order"
        ),
        "test_a_time_starts_at_the_first_record_that_is_not_older[tail, restarted]": (
            "[object storage]"
        ),
        "test_a_time_starts_at_the_first_record_that_is_not_older[object storage, restarted]": (
            "[object storage]"
        ),
    },
    "tests/journeys/test_scenarios_outage.py": {
        "test_a_store_that_stays_away_is_answered_before_the_disk_is_full": (
            "tests/unit/ingest/test_failing_disk.py::test_a_full_disk_refuses_and_takes_again_when_there_is_room"
        ),
    },
    "tests/journeys/test_trouble.py": {
        "test_a_second_process_on_the_same_directory_is_refused": (
            "tests/unit/ingest/test_ownership.py::test_a_second_process_on_a_directory_cannot_start"
        ),
        "test_a_store_that_is_away_does_not_stop_producers": (
            "tests/journeys/test_scenarios_outage.py::test_while_the_store_is_away_producers_and_the_tail_go_on_and_the_rest_says_so"
        ),
        "test_a_stop_is_prompt_and_says_nothing_of_loose_ends[waiting_reader]": ("[under_load]"),
        "test_a_stop_is_prompt_and_says_nothing_of_loose_ends[pending]": ("[under_load]"),
    },
    "tests/journeys/test_leaderless_nodes.py": {
        "test_producers_of_all_modes_go_from_node_to_node": (
            "tests/unit/ingest/leaderless/test_two_nodes.py"
        ),
        "test_nothing_is_stored_after_the_answer_of_a_fence": "tests/model/test_leaderless.py",
        "test_what_was_sent_to_a_deleted_stream_is_not_in_the_next_of_its_name": (
            "tests/unit/manifest/test_leaderless_deletion.py"
        ),
        "test_a_node_whose_clock_is_an_hour_ahead_refuses_and_moves_no_time": (
            "tests/unit/ingest/leaderless/test_writer.py::test_a_node_whose_clock_is_wrong_gives_no_timestamp"
        ),
        "test_nodes_restart_in_turn_and_every_request_is_answered": (
            "tests/unit/ingest/leaderless/test_writer.py"
        ),
        "test_a_node_that_slept_until_it_was_given_up_commits_nothing_that_is_gone": (
            "tests/unit/manifest/test_vacuum.py::test_a_writer_that_wakes_commits_nothing"
        ),
    },
    "tests/journeys/test_scenarios_drain.py": {
        "test_a_stop_under_load_loses_no_answer_and_tells_no_lie[ingest alone]": ("[all in one]"),
    },
    "tests/journeys/test_lost_segments.py": {
        "test_behind_lost_segments_the_stream_goes_on_once_the_loss_is_accepted[in what is left]": (
            "[in what is lost]"
        ),
    },
    "tests/integration/test_generated_clients.py": {
        "test_a_generated_typescript_client_appends_and_reads": (
            "::test_a_generated_python_client_appends_and_reads"
        ),
    },
    "tests/integration/test_rabbitmq.py": {
        "test_what_a_node_confirmed_is_imported_while_it_runs_and_after_it_was_killed": (
            "tests/unit/cli/test_cli_import.py::test_an_import_stores_what_was_published_and_a_repeat_adds_nothing"
        ),
    },
    "tests/chaos/test_partition.py": {
        "test_who_was_deposed_while_it_was_cut_off_acknowledges_nothing_to_its_clients": (
            "tests/journeys/test_failover.py::test_a_zombie_acknowledges_shows_and_feeds_nothing"
        ),
    },
    "tests/linearizability/test_linearizability.py": {
        "test_two_nodes_that_do_not_watch_the_tail_are_not_linearizable": (
            "tests/model/test_leaderless.py::test_a_commit_that_does_not_watch_what_it_read_is_noticed"
        ),
    },
    "tests/faults/test_puts.py": {
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[LATE_REQUEST-500-InternalError]": (
            "[LOSE_REQUEST-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[FLIP_REQUEST-500-InternalError]": (
            "[CUT_REQUEST-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[DRIP-500-InternalError]": (
            "[STALL-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[REFUSE-503-SlowDown]": (
            "[REFUSE-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[REFUSE-503-ServiceUnavailable]": (
            "[REFUSE-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[MISREPORT-503-SlowDown]": (
            "[MISREPORT-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[MISREPORT-503-ServiceUnavailable]": (
            "[MISREPORT-500-InternalError]"
        ),
        "test_a_put_that_fails_leaves_every_record_in_one_fragment[MISREPORT-409-ConditionalRequestConflict]": (
            "[REFUSE-409-ConditionalRequestConflict]"
        ),
        "test_an_object_of_ours_that_cannot_be_looked_at_is_put_once[STALL-500-InternalError]": (
            "[LOSE_REPLY-500-InternalError]"
        ),
        "test_an_object_of_ours_that_cannot_be_looked_at_is_put_once[REFUSE-500-InternalError]": (
            "[LOSE_REPLY-500-InternalError]"
        ),
        "test_an_object_of_ours_that_cannot_be_looked_at_is_put_once[REFUSE-503-SlowDown]": (
            "[LOSE_REPLY-500-InternalError]"
        ),
    },
    "tests/unit/ingest/test_left_producers.py": {
        "test_whoever_has_a_stream_after_a_loss_of_coordination_knows_its_producers[the bucket is told]": (
            "[the last owner is back]"
        ),
        "test_whoever_has_a_stream_after_a_loss_of_coordination_knows_its_producers[it is back after the lease]": (
            "[the last owner is back]"
        ),
        "test_whoever_has_a_stream_after_a_loss_of_coordination_knows_its_producers[it is back without manifest]": (
            "[both are back]"
        ),
    },
    "tests/spark/test_spark_stream.py": {
        "test_a_query_over_a_leaderless_stream_is_one_over_a_local_stream": (
            "tests/spark/test_spark_source.py::test_a_leaderless_stream_is_read_as_a_local_one_is"
        ),
        "test_a_query_that_was_stopped_goes_on_where_it_was": (
            "::test_a_query_that_died_in_a_batch_does_that_batch_again_with_the_same_records"
        ),
    },
    "tests/spark/test_spark_super.py": {
        "test_all_partitions_are_one_dataframe": (
            "::test_a_query_goes_on_in_each_partition_and_finds_new_ones"
        ),
    },
    "tests/spark/test_spark_s3.py": {
        "test_every_way_brings_the_same_rows[reader-wrong-reader]": (
            "tests/spark/test_spark_source.py::test_the_mode_decides_who_reads[reader]"
        ),
        "test_a_lost_object_is_an_error_with_its_offsets[presigned]": ("[direct]"),
    },
    "tests/spark/test_spark_jobs.py": {
        "test_an_export_has_every_row_and_goes_on_where_it_ended[delta]": ("[iceberg]"),
        "test_an_export_refuses_another_stream_of_the_name_and_other_columns[delta]": ("[parquet]"),
        "test_an_export_refuses_another_stream_of_the_name_and_other_columns[iceberg]": (
            "[parquet]"
        ),
    },
    "tests/spark/test_spark_s3_jobs.py": {
        "test_an_export_to_s3_that_broke_off_goes_on_with_its_position[delta]": ("[parquet]"),
        "test_an_export_to_s3_that_broke_off_goes_on_with_its_position[iceberg]": ("[parquet]"),
    },
    "tests/spark/test_spark_sink.py": {
        "test_a_second_run_with_the_same_txn_id_writes_nothing[leaderless]": "[local]",
        "test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise[leaderless-after]": (
            "[local-after]"
        ),
        "test_every_column_is_written_and_read_back[leaderless]": ("[local]"),
        "test_rows_of_many_tasks_become_one_append_in_the_order_of_partitions[leaderless]": (
            "[local]"
        ),
        "test_no_rows_make_no_request[leaderless]": ("[local]"),
        "test_a_batch_above_the_bound_is_written_in_parts_under_one_number[leaderless]": (
            "[local]"
        ),
    },
    "tests/spark/test_spark_source.py": {
        "test_all_rows_are_those_of_plain_reads[direct]": ("[auto]"),
        "test_ranges_inside_chunks_and_across_them_are_cut_exactly[3-5]": ("[650-3001]"),
        "test_ranges_inside_chunks_and_across_them_are_cut_exactly[699-701]": ("[650-3001]"),
    },
}
"""By file what is left out of it with the relative that stays: another case of the same test, another test of
the file, or one of another file. Each step that dies here dies in a unit test or in a model too, at every
call; of ways to fail that are answered alike one stays; Spark reads and writes both profiles, and every
format, in one test at least (decision 226)."""


def _relative(file: str, test: str, relative: str) -> str:
    if relative.startswith("["):
        return f"{file}::{test.partition('[')[0]}{relative}"
    return f"{file}{relative}" if relative.startswith("::") else relative


LEFT_OUT: Final[Mapping[str, str]] = {
    **{
        f"{file}::{test}": _relative(file, test, relative)
        for file, tests in _CHEAPER.items()
        for test, relative in tests.items()
    },
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
    # Scenarios L1 to L40 are held in one process too (docs/guarantees.md), and a journey of all of them is
    # test_leaderless_served.py; chaos kills Valkey, and lies about objects of leaderless streams.
    "tests/faults/test_leaderless.py": "tests/unit/ingest/leaderless/test_writer_faults.py",
    "tests/journeys/test_leaderless_compaction.py": "tests/unit/uploader/test_compaction_rounds.py",
    "tests/journeys/test_leaderless_coordination.py": "tests/model/test_leaderless_writers.py",
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
