"""deploy/prometheus: it asks what the composition serves, and its alarms fire when they should.

The checks before these looked at the metrics that the alarms name, and at no target: the example
asked four addresses at which nobody listened, and one of the four metrics that docs/how-to/watch.md
tells people to watch had no alarm.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus import DIRECTORY, metrics_of, promtool, rules, targets

from deploy.composition import ROOT, SERVICES, service

LISTEN = "BOTTOMLESS_METRICS_LISTEN"


def test_what_is_scraped_is_where_the_composition_serves_metrics() -> None:
    served = {
        name: service(name)["environment"][LISTEN].replace("0.0.0.0", name) for name in SERVICES
    }
    assert targets() == served
    # The only files that it loads are those that lie beside it.
    shipped = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    assert shipped["rule_files"] == ["alerts.yml"]
    assert {path.name for path in DIRECTORY.iterdir()} == {"prometheus.yml", "alerts.yml"}


def test_each_metric_that_the_guide_tells_people_to_watch_has_an_alarm() -> None:
    page = (ROOT / "docs" / "how-to" / "watch.md").read_text()
    named = set(re.findall(r"^\| `(bottomless_\w+)` \|", page, re.MULTILINE))
    assert len(named) == 4
    assert named <= {metric for rule in rules() for metric in metrics_of(rule["expr"])}


def test_prometheus_takes_the_files() -> None:
    promtool("check", "rules", str(DIRECTORY / "alerts.yml"))
    promtool("check", "config", str(DIRECTORY / "prometheus.yml"))


@pytest.mark.parametrize(
    ("alarm", "series", "values", "fires"),
    [
        # A healthy stream of the defaults: cut each minute, then nothing is left.
        ("UploaderLags", "uploader_lag_seconds", "0 30 60 0x60", False),
        ("UploaderLags", "uploader_lag_seconds", "0+60x60", True),
        ("CoordinationRegressed", "manifest_regressed", "0x30", False),
        ("CoordinationRegressed", "manifest_regressed", "0x20 1x10", True),
        ("LiveObjectWasDue", "manifest_refused_deletes_total", "3x30", False),
        ("LiveObjectWasDue", "manifest_refused_deletes_total", "0x20 1x10", True),
        ("LoopFails", 'loop_failures_total{service="ingest", loop="lease"}', "0x20 1x10", True),
        # A stream of half an hour that is cut in time.
        ("CompactionLags", "compaction_oldest_age_seconds", "0+60x30 0x30", False),
        ("CompactionLags", "compaction_oldest_age_seconds", "0+120x60", True),
        ("TailBound", 'ingest_wal_refusals_total{code="tail-bound"}', "2x30", False),
        ("TailBound", 'ingest_wal_refusals_total{code="tail-bound"}', "0x20 1x10", True),
        ("TailBound", 'ingest_wal_refusals_total{code="overloaded"}', "0x20 1x10", False),
        ("CompactionSetsAside", "compaction_streams_set_aside", "0x10 1x5 0x30", False),
        ("CompactionSetsAside", "compaction_streams_set_aside", "0x10 1x30", True),
        # One that was lost while coordination was restarted.
        ("CommitsUnknown", 'ingest_wal_commits_total{outcome="unknown"}', "0x10 1x30", False),
        ("CommitsUnknown", 'ingest_wal_commits_total{outcome="unknown"}', "0+1x30", True),
        ("ObjectsInDoubt", "manifest_wal_in_doubt", "0x30", False),
        ("ObjectsInDoubt", "manifest_wal_in_doubt", "0x29 1x10", True),
        # A node that was stopped and started, and one that is away.
        ("ReplicasFewer", 'ingest_replica_in_sync{state="fewer"}', "0x26 9x2 0x10", False),
        ("ReplicasFewer", 'ingest_replica_in_sync{state="fewer"}', "0x20 9x10", True),
        ("ReplicasFewer", 'ingest_replica_in_sync{state="all"}', "9x30", False),
        ("ReplicasAtMinimum", 'ingest_replica_in_sync{state="fewer"}', "9x30", False),
        ("ReplicasAtMinimum", 'ingest_replica_in_sync{state="minimum"}', "0x20 9x10", False),
        ("ReplicasAtMinimum", 'ingest_replica_in_sync{state="minimum"}', "0x10 9x20", True),
        ("ReplicaFull", "ingest_replica_full", "0x20 1x2 0x10", False),
        ("ReplicaFull", "ingest_replica_full", "0x20 1x10", True),
        ("MovesFail", "uploader_move_failures_total", "2x30", False),
        ("MovesFail", "uploader_move_failures_total", "0+1x30", True),
        ("TiersFail", "manifest_failing_tier_streams", "0x20 1x5 0x10", False),
        ("TiersFail", "manifest_failing_tier_streams", "0x10 1x20", True),
        # A target that is full for a while.
        ("DeadLettersWait", "queues_outgoing_waiting", "0x10 1x10 0x30", False),
        ("DeadLettersWait", "queues_outgoing_waiting", "0x10 1x30", True),
        ("MessagesDamaged", 'queues_messages{state="ready"}', "5x30", False),
        ("MessagesDamaged", 'queues_messages{state="damaged"}', "0x29 1x10", True),
    ],
)
def test_an_alarm_fires_when_it_should(
    alarm: str, series: str, values: str, fires: bool, tmp_path: Path
) -> None:
    """Asked of Prometheus' own evaluation, half an hour after the first value."""
    name = f"Bottomless{alarm}"
    (rule,) = [rule for rule in rules() if rule["alert"] == name]
    # A sum over all of them has none.
    kept = series if not re.match(r"(sum|max)\(", rule["expr"]) else ""
    labels = dict(re.findall(r'(\w+)="([\w-]+)"', kept))
    summary = rule["annotations"]["summary"]
    for label, text in labels.items():
        summary = summary.replace(f"{{{{ $labels.{label} }}}}", text)
    annotations = rule["annotations"] | {"summary": summary}
    fired = {"exp_labels": rule["labels"] | labels, "exp_annotations": annotations}
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": f"bottomless_{series}", "values": values}],
        "alert_rule_test": [
            {"eval_time": "30m", "alertname": name, "exp_alerts": [fired] if fires else []}
        ],
    }
    told = tmp_path / "case.yml"
    told.write_text(
        yaml.safe_dump({"rule_files": [str(DIRECTORY / "alerts.yml")], "tests": [case]})
    )
    promtool("test", "rules", str(told))
