"""docker-compose.nodes.yml: three ingest nodes in the place of one, by what the two files say together."""

from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.settings import ManifestSettings
from deploy.composition import ROOT, composition, service
from deploy.test_composition import run_tool

FILE: Final = "docker-compose.nodes.yml"
NODES: Final = ("ingest", "ingest-2", "ingest-3")
INSIDE: Final = "inside"


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / FILE).read_text())
    return read


def environment(more: dict[str, Any], name: str) -> dict[str, str]:
    """What a node is told: what the first one is in docker-compose.yml, and what stands here."""
    return {**service("ingest")["environment"], **more["services"][name]["environment"]}


def names_of(more: dict[str, Any], name: str) -> set[str]:
    """The names under which the others reach a container."""
    return {name, *more["services"][name]["networks"][INSIDE]["aliases"]}


def test_it_is_a_composition() -> None:
    checked = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)
    assert checked.returncode == 0, checked.stdout


def test_the_other_nodes_are_what_the_first_one_is(more: dict[str, Any]) -> None:
    assert set(more["services"]) == {"manifest", *NODES}
    for name in NODES[1:]:
        extended = more["services"][name]["extends"]
        assert extended == {"file": "docker-compose.yml", "service": "ingest"}
        # Compose does not take these along.
        assert more["services"][name]["depends_on"] == service("ingest")["depends_on"]


def test_each_node_has_a_volume_of_its_own_where_its_data_is(more: dict[str, Any]) -> None:
    mounts = [service("ingest")["volumes"], *(more["services"][n]["volumes"] for n in NODES[1:])]
    sources, targets = zip(*(mount.split(":") for [mount] in mounts), strict=True)
    assert set(targets) == {service("ingest")["environment"]["BOTTOMLESS_DATA_DIR"]}
    assert len(set(sources)) == len(NODES)
    assert set(sources) <= {*composition()["volumes"], *more["volumes"]}


def test_each_node_is_called_by_a_name_that_no_other_has(more: dict[str, Any]) -> None:
    listening = service("ingest")["environment"]["BOTTOMLESS_INGEST_INTERNAL_LISTEN"]
    hosts = []
    for name in NODES:
        url = urlsplit(environment(more, name)["BOTTOMLESS_INGEST_URL"])
        assert f"0.0.0.0:{url.port}" == listening
        assert url.hostname in names_of(more, name)
        assert all(url.hostname not in names_of(more, other) for other in {*NODES} - {name})
        hosts.append(url.hostname)
    assert len(set(hosts)) == len(NODES)


def test_nginx_finds_all_of_them_under_the_name_that_it_knows(more: dict[str, Any]) -> None:
    assert all("ingest" in names_of(more, name) for name in NODES)
    assert "server ingest:8080 resolve" in (ROOT / "deploy" / "nginx.conf").read_text()


def test_every_setting_is_known_and_streams_have_a_replica_on_each(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NODES:
        for key, value in more["services"][name]["environment"].items():
            monkeypatch.setenv(key, value)
        assert IngestSettings().ingest_url == f"http://ingest-{NODES.index(name) + 1}:9080"
    for key, value in more["services"]["manifest"]["environment"].items():
        monkeypatch.setenv(key, value)
    assert ManifestSettings().manifest_replicas == len(NODES)
