"""docker-compose.yml: what it says, and that all of it runs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.nginx import CONFIGURATION
from support.prometheus import answer, metrics_of, rules, running_prometheus, targets
from support.separate_processes import FiveProcesses
from support.waiting import until

from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.listener.listeners import CLOSE_SECONDS
from bottomless_server.runtime.process.service import STOP_SECONDS
from bottomless_server.serve import UNAUTHENTICATED, ServiceName
from bottomless_server.single import NEEDED
from bottomless_server.uploader.settings import UploaderSettings
from deploy.composition import (
    ROOT,
    SERVICES,
    Composed,
    composition,
    image_healthcheck,
    in_order,
    running_composition,
    service,
    variables,
)

SETTINGS: Final[dict[str, type[CommonSettings]]] = {
    "ingest": IngestSettings,
    "manifest": ManifestSettings,
    "queues": QueuesSettings,
    "reader": ReaderSettings,
    "uploader": UploaderSettings,
}
CONTAINER_ONLY: Final = {
    "BOTTOMLESS_HOST",
    UNAUTHENTICATED,
    "BOTTOMLESS_INTERNAL_SECRET",
    "BOTTOMLESS_METRICS_LISTEN",
    "BOTTOMLESS_LOG_JSON",
    "BOTTOMLESS_DOCS",  # On by itself where a process listens on loopback.
}
"""What a container needs, or is better with, beyond what a process on loopback is told."""


def settings_of(name: str) -> dict[str, str]:
    """The environment of a service, without what is not ours."""
    given: dict[str, str] = service(name)["environment"]
    return {key: value for key, value in given.items() if key.startswith("BOTTOMLESS_")}


def run_tool(*words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / words[0]
    return subprocess.run(
        [program, *words[1:]], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


def test_it_is_a_composition() -> None:
    checked = run_tool(
        *("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")
    )
    assert checked.returncode == 0, checked.stdout


def test_every_image_stands_at_a_tag_and_comes_from_no_named_place() -> None:
    for name in composition()["services"]:
        image, _, tag = service(name)["image"].partition(":")
        assert tag, name
        assert "." not in image.split("/")[0], name
        assert tag != "latest" or name in SERVICES


def test_the_commands_are_those_that_the_tests_run_as_five_processes(tmp_path: Path) -> None:
    deployment = FiveProcesses(tmp_path, "redis://127.0.0.1:1/0")
    assert set(deployment.services) == set(SERVICES) == set(ServiceName)
    for name, process in deployment.services.items():
        assert process._arguments == service(name)["command"]
        own = {key for key in process._settings if key.startswith("BOTTOMLESS_")}
        assert set(settings_of(name)) - CONTAINER_ONLY == own - {"BOTTOMLESS_PORT"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_setting_is_one_of_the_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings_of(name)
    for key in [key for key in os.environ if key.startswith("BOTTOMLESS_")]:
        monkeypatch.delenv(key)
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    read = SETTINGS[name]().model_dump(exclude_defaults=True)

    elsewhere = {f"BOTTOMLESS_{name.upper()}_INTERNAL_LISTEN"}
    assert {f"BOTTOMLESS_{setting.upper()}" for setting in read} == set(given) - elsewhere
    assert set(NEEDED[name]) <= set(read)


@pytest.mark.parametrize("name", SERVICES)
def test_who_is_called_listens_there(name: str) -> None:
    given = settings_of(name)
    for peer in ("manifest", "ingest"):
        url = urlsplit(given[f"BOTTOMLESS_{peer.upper()}_URL"])
        listening = settings_of(peer)[f"BOTTOMLESS_{peer.upper()}_INTERNAL_LISTEN"]
        assert (url.scheme, url.hostname, f"0.0.0.0:{url.port}") == ("http", peer, listening)

    coordination = urlsplit(given["BOTTOMLESS_COORDINATION_URL"])
    assert coordination.hostname == "valkey"
    assert f"port {coordination.port}\n" in (ROOT / "deploy" / "valkey.conf").read_text()
    assert coordination.password == service("valkey")["environment"]["VALKEYCLI_AUTH"]
    assert service("valkey")["command"][-2:] == ["--requirepass", coordination.password]

    store = urlsplit(given["BOTTOMLESS_STORE_URL"])
    assert parse_qs(store.query)["endpoint"] == ["http://s3:8333"]
    assert f"s3.bucket.create -name {store.netloc}" in service("bucket")["entrypoint"][-1]
    own = service(name)["environment"]
    for key, value in service("s3")["environment"].items():
        assert own[key] == value


def test_nginx_alone_can_be_reached_and_only_from_this_machine() -> None:
    published = {name: found.get("ports") for name, found in composition()["services"].items()}
    assert published.pop("nginx") == ["127.0.0.1:8080:8080"]
    assert set(published.values()) == {None}

    networks = composition()["networks"]
    assert networks["inside"] == {"internal": True}
    for name in composition()["services"]:
        assert service(name)["networks"] == (
            ["inside", "outside"] if name == "nginx" else ["inside"]
        )
    names = re.findall(r"server (\w+):8080 resolve", CONFIGURATION.read_text())
    assert set(names) < set(SERVICES)


def test_each_service_starts_after_those_that_it_needs() -> None:
    ordered = in_order()
    for before, after in [
        ("s3", "bucket"),
        ("bucket", "manifest"),
        ("valkey", "manifest"),
        ("manifest", "ingest"),
        ("ingest", "uploader"),
        ("ingest", "reader"),
        ("reader", "nginx"),
    ]:
        assert ordered.index(before) < ordered.index(after)
        condition = service(after)["depends_on"][before]["condition"]
        # Not only started: what starts earlier would meet refused connections.
        ends = before == "bucket"
        assert condition == ("service_completed_successfully" if ends else "service_healthy")
    for name in composition()["services"]:
        asked = service(name).get("healthcheck") or (image_healthcheck() if name in SERVICES else 0)
        assert asked or name == "bucket"


def test_a_service_is_given_the_time_that_its_drain_takes() -> None:
    drain = CommonSettings.model_fields["drain_seconds"].default
    for name in SERVICES:
        assert "BOTTOMLESS_DRAIN_SECONDS" not in settings_of(name)
        grace = int(service(name)["stop_grace_period"].removesuffix("s"))
        assert grace > drain + STOP_SECONDS + CLOSE_SECONDS
        assert service(name)["restart"] == "unless-stopped"


def test_what_must_outlive_a_container_lies_on_a_volume() -> None:
    kept = {
        name: [mount for mount in found.get("volumes", []) if mount.endswith(":/data")]
        for name, found in composition()["services"].items()
    }
    assert {name: mounts for name, mounts in kept.items() if mounts} == {
        name: [f"{name}:/data"] for name in ("manifest", "ingest", "queues", "valkey", "s3")
    }
    assert set(composition()["volumes"]) == {"manifest", "ingest", "queues", "valkey", "s3"}


def test_what_a_user_has_to_change_is_a_variable_and_the_docs_name_it() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert set(variables()) == {
        "BOTTOMLESS_VERSION",
        "BOTTOMLESS_STORE_URL",
        "BOTTOMLESS_INTERNAL_SECRET",
        "BOTTOMLESS_VALKEY_PASSWORD",
        "BOTTOMLESS_S3_ACCESS_KEY",
        "BOTTOMLESS_S3_SECRET_KEY",
    }
    for variable in variables():
        assert f"`{variable}`" in page


def test_every_setting_that_the_docs_name_exists() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    fields = {field for settings in SETTINGS.values() for field in settings.model_fields}
    known = {f"BOTTOMLESS_{field.upper()}" for field in fields} | set(variables())
    known |= {f"BOTTOMLESS_{name.upper()}_INTERNAL_LISTEN" for name in SERVICES}
    named = set(re.findall(r"BOTTOMLESS_[A-Z_0-9]+", page))
    assert UNAUTHENTICATED in named <= known


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    with running_composition(tmp_path_factory.mktemp("composed")) as running:
        yield running


def test_a_record_goes_all_the_way_through_the_composition(composed: Composed) -> None:
    for name in SERVICES:
        assert composed.healthy(name)
    # Again, as when the composition is started a second time.
    composed.run_bucket()
    filer = f"http://127.0.0.1:{composed.port('s3', 8888)}"
    assert '"fsync"' in httpx.get(f"{filer}/etc/seaweedfs/filer.conf").text
    stranger = httpx.get(f"http://127.0.0.1:{composed.port('s3', 8333)}/bottomless")
    assert stranger.status_code == 403

    secret = settings_of("manifest")["BOTTOMLESS_INTERNAL_SECRET"]
    for name in SERVICES:
        inside = f"http://127.0.0.1:{composed.port(name, 9080)}/metrics"
        assert httpx.get(inside).status_code == 401
        wrong = {"Authorization": f"Bearer {secret}x"}
        assert httpx.get(inside, headers=wrong).status_code == 401
        right = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(inside, headers=right).status_code == 200
        numbers = httpx.get(f"http://127.0.0.1:{composed.port(name, 9464)}/metrics")
        assert "bottomless_http_requests_total" in numbers.text

    stream = "/v1/streams/orders"
    with httpx.Client(base_url=composed.url, timeout=30) as client:
        assert client.get("/readyz").json()["status"] == "ready"
        created = client.put(stream, json={"fragment": {"target_bytes": 65_536, "max_age_ms": 100}})
        assert created.status_code == 201, created.text
        appended = client.post(f"{stream}/records", json={"records": [{"value": "one"}]})
        assert appended.status_code == 200, appended.text

        def stored() -> bool:
            bounds = client.get(f"{stream}/offsets").raise_for_status().json()
            return bool(bounds["object_store_next_offset"] == 1)

        until(stored, what="the record to be in the object store")
        read = client.get(f"{stream}/records", params={"offset": "first"}).raise_for_status()
        assert [record["value"] for record in read.json()["records"]] == ["one"]
        (fragment,) = client.get(f"{stream}/fragments").raise_for_status().json()["fragments"]
        assert fragment["last_offset"] == 0


def scraped(composed: Composed, text: str) -> str:
    """A text with addresses that Prometheus asks, as they are on this machine."""
    return composed.placed("manifest", text)


def test_each_service_serves_the_metrics_that_its_alarms_name(composed: Composed) -> None:
    """What the shipped Prometheus would find, also where none is installed."""
    known: set[str] = set()
    for name, address in targets().items():
        shown = httpx.get(f"http://{scraped(composed, address)}/metrics").raise_for_status()
        assert f"bottomless_{name}_" in shown.text
        for family in text_string_to_metric_families(shown.text):
            ends = ("", "_total", "_bucket", "_count")
            known |= {f"{family.name}{end}" for end in ends}
    for rule in rules():
        named = metrics_of(rule["expr"])
        assert named or rule["expr"] == 'up{job="bottomless"} == 0'
        assert named <= known, rule["alert"]


def test_a_real_prometheus_reaches_every_service_and_knows_every_metric(
    composed: Composed, tmp_path: Path
) -> None:
    def up() -> bool:
        active = answer(prometheus, "targets")["activeTargets"]
        return len(active) == len(SERVICES) and all(one["health"] == "up" for one in active)

    def evaluated() -> list[dict[str, Any]]:
        (group,) = answer(prometheus, "rules")["groups"]
        found: list[dict[str, Any]] = group["rules"]
        return found if all(rule["health"] != "unknown" for rule in found) else []

    def asked(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer(prometheus, "query", query=query)["result"]
        return found

    with running_prometheus(tmp_path / "prometheus", partial(scraped, composed)) as prometheus:
        until(up, what="all targets up")
        found = until(evaluated, what="every rule evaluated")
        assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules()}
        assert {rule["health"] for rule in found} == {"ok"}
        for metric in {metric for rule in rules() for metric in metrics_of(rule["expr"])}:
            until(partial(asked, metric), what=metric)
        reached = asked('up{job="bottomless"} == 1')
        assert {one["metric"]["service"] for one in reached} == set(SERVICES)


def test_the_check_of_health_fails_where_nobody_answers(tmp_path: Path) -> None:
    composed = Composed(tmp_path)
    assert image_healthcheck()[0] == "python"
    away = composed.port("nobody", 8080)
    asked = subprocess.run(
        [sys.executable, *image_healthcheck()[1:]],
        env={"BOTTOMLESS_PORT": str(away)},
        capture_output=True,
        check=False,
    )
    assert asked.returncode != 0
