"""An import of a node is whole or begins anew, and says what it does not know."""

import random
import shutil
from pathlib import Path

import pytest
from support.classic_messages import published_1, stored_2, write_queue, write_rdq
from support.guards import remove

from bottomless_server.queues.core.start_plan import Refused, V1Files
from bottomless_server.queues.offline.rabbit_import import Importing, ImportRefused, import_node
from bottomless_server.queues.offline.rabbit_source import NotANode
from bottomless_server.queues.offline.rabbit_survey import (
    NO_BODY,
    NO_FILE,
    UNKNOWN_MESSAGE,
    survey,
)
from bottomless_server.queues.store.start import start_store
from unit.queues.import_harness import (
    EXPECTED,
    IDS,
    NOW,
    PATH,
    TENANTS,
    MemoryStore,
    counting,
    run_import,
    write_node,
)
from unit.queues.version_1_harness import PowerLost


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write_node(tmp_path / "node")


def vhost(node: Path) -> Path:
    return node / "msg_stores/vhosts/A"


def test_each_queue_has_its_messages_in_the_order_of_their_delivery(node: Path) -> None:
    store = MemoryStore()
    report = run_import(store, node)
    assert store.contents() == EXPECTED
    assert store.open_ledger().check() == []
    assert (report.copied_files, report.last_v1_file) == (3, 2)
    assert sorted(store.disk.names(store.messages)) == ["0.rdq", "1.rdq", "2.rdq", "3.sqs"]
    assert sorted(store.disk.names(PATH)) == ["messages", "registry"]
    assert len(store.disk.names(store.registry_path)) == len(EXPECTED)


def test_a_message_keeps_its_end_and_counts_as_published_now(node: Path) -> None:
    store = MemoryStore()
    run_import(store, node)
    ledger = store.open_ledger()
    row = ledger.queue_named("default", "jobs")
    assert row is not None
    items = [one.item for one in ledger.ready(row.inside, 9)]
    assert [item.expires_at for item in items] == [NOW + 5_000, None, None]
    assert {item.published_at for item in items} == {NOW}
    assert {item.deliveries for item in items} == {0}


def test_a_store_that_was_imported_starts_like_any_other(node: Path) -> None:
    store = MemoryStore()
    run_import(store, node)
    report = start_store(store.disk, store.messages, store.open_ledger(), v1_files=V1Files.MIGRATE)
    assert (report.migration.rewritten, report.last_v1_file) == ((0, 1, 2), None)
    assert store.contents() == EXPECTED


def test_an_import_that_dies_anywhere_is_whole_or_is_begun_anew(node: Path) -> None:
    whole = MemoryStore()
    whole.live()
    run_import(whole, node)
    chance = random.Random(3)
    marked = 0
    for dies_at in range(whole.calls):
        store = MemoryStore()
        store.dies_at = dies_at
        store.live()
        with pytest.raises(PowerLost):
            run_import(store, node)
        other = store.after_power_loss(chance)
        if "import" in other.disk.names(PATH):
            marked += 1
            with pytest.raises(Refused, match="begins anew"):
                start_store(other.disk, other.messages, other.open_ledger())
        elif other.kept is not None and other.kept.store().round:
            assert other.contents() == EXPECTED, "without the mark it is whole"
            continue
        run_import(other, node)
        assert other.contents() == EXPECTED
        assert other.open_ledger().check() == []
        assert "import" not in other.disk.names(PATH)
    assert marked > 50


def test_without_its_mark_half_an_import_would_pass_for_a_store(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "an import is marked before it writes", lambda *_: None)
    whole = MemoryStore()
    whole.live()
    with pytest.raises(OSError, match="import"):
        run_import(whole, node)
    passed = 0
    for dies_at in range(whole.calls // 2, whole.calls):
        store = MemoryStore()
        store.dies_at = dies_at
        store.live()
        with pytest.raises(PowerLost):
            run_import(store, node)
        other = store.after_power_loss(random.Random(dies_at))
        try:
            start_store(other.disk, other.messages, other.open_ledger())
        except Refused:
            continue
        passed += other.contents() != EXPECTED
    assert passed


def test_nothing_is_imported_into_a_store_that_has_something(node: Path) -> None:
    store = MemoryStore()
    run_import(store, node)
    with pytest.raises(ImportRefused, match="is not empty"):
        run_import(store, node)
    assert store.contents() == EXPECTED


def test_all_that_is_not_said_or_does_not_fit_is_said_at_once(node: Path) -> None:
    write_queue(vhost(node) / "queues/6", "/", "a b", {"0.idx": published_1(0, IDS[1])})
    importing = Importing({"/": "default", "us": "america"}, {"jobs": "orders", "gone": "x"})
    store = MemoryStore()
    with pytest.raises(ImportRefused) as refused:
        run_import(store, node, importing)
    said = str(refused.value)
    for part in (
        "no tenant is named for 'eu': --vhost NAME=TENANT",
        "the node has no virtual host 'us'",
        "'a b' of '/': a queue name must start",
        "two queues would be 'orders' of default: 'jobs' of '/' and 'orders' of '/'",
        "no queue with messages is called 'gone'",
    ):
        assert part in said
    assert store.disk.names(PATH) == [], "nothing was changed"


def test_a_vhost_may_be_left_out_and_a_queue_get_another_name(node: Path) -> None:
    store = MemoryStore()
    run_import(store, node, Importing({"/": "default", "eu": None}, {"urgent": "now"}))
    expected = {key: value for key, value in EXPECTED.items() if key[0] == "default"}
    expected["default", "now"] = expected.pop(("default", "urgent"))
    assert store.contents() == expected


def test_a_tenant_of_a_wrong_name_is_told_once_and_not_for_each_queue(node: Path) -> None:
    with pytest.raises(ImportRefused) as refused:
        run_import(MemoryStore(), node, Importing({"/": "Bad/Tenant", "eu": "europe"}))
    assert str(refused.value).count("the tenant of '/': ") == 1
    assert "--rename" not in str(refused.value)


def test_queues_of_one_name_in_two_vhosts_go_to_one_tenant_under_two_names(node: Path) -> None:
    both = {"/": "default", "eu": "default"}
    with pytest.raises(ImportRefused, match="--rename VHOST/OLD=NEW"):
        run_import(MemoryStore(), node, Importing(both))
    store = MemoryStore()
    run_import(store, node, Importing(both, {"eu/jobs": "jobs-eu"}))
    assert store.contents()["default", "jobs-eu"] == EXPECTED["europe", "jobs"]
    assert store.contents()["default", "jobs"] == EXPECTED["default", "jobs"]
    run_import(MemoryStore(), node, Importing(both, {"//jobs": "a", "jobs": "b"}))


def test_what_is_of_no_known_shape_is_named_and_left_out_only_if_that_is_accepted(
    node: Path,
) -> None:
    write_rdq(vhost(node), 9, {IDS[6]: b"\x83nothing"})
    found = survey(node)
    assert found.losses() == [UNKNOWN_MESSAGE]
    assert "9.rdq" in found.findings.named(UNKNOWN_MESSAGE)[0]
    store = MemoryStore()
    with pytest.raises(ImportRefused, match="there are 1 messages of an unknown shape"):
        run_import(store, node)
    run_import(store, node, Importing(TENANTS, accept_loss=True))
    assert store.contents() == EXPECTED


def test_entries_without_a_message_are_counted_and_are_no_loss(node: Path) -> None:
    found = survey(node)
    assert found.findings.counts == {NO_BODY: 1}
    assert found.losses() == []


def test_entries_whose_message_file_is_missing_are_a_loss(node: Path) -> None:
    (vhost(node) / "msg_store_persistent/1.rdq").unlink()
    found = survey(node)
    assert found.losses() == [NO_FILE]
    assert "1.rdq is not there" in found.findings.named(NO_FILE)[0]
    store = MemoryStore()
    with pytest.raises(ImportRefused, match=r"2 entries of indexes whose message file .*--accept"):
        run_import(store, node)
    assert store.disk.names(PATH) == [], "nothing was changed"
    run_import(store, node, Importing(TENANTS, accept_loss=True))
    expected = {**EXPECTED, ("default", "orders"): [b"container", b"shared"]}
    assert store.contents() == expected


def test_all_entries_are_a_loss_where_there_is_no_message_store(node: Path) -> None:
    shutil.rmtree(vhost(node) / "msg_store_persistent")
    found = survey(node)
    assert found.losses() == [NO_FILE]
    assert NO_BODY not in found.findings.counts
    assert "has no message file" in found.findings.named(NO_FILE)[0]


def test_after_a_clean_end_an_entry_without_a_message_is_a_loss(node: Path) -> None:
    (vhost(node) / "msg_store_persistent/clean.dot").touch()
    assert survey(node).losses() == [NO_FILE]


def test_a_file_that_the_broker_removed_is_no_loss_if_nothing_is_missed(node: Path) -> None:
    files = vhost(node).parent / "B/msg_store_persistent"
    (files / "0.rdq").rename(files / "7.rdq")
    assert survey(node).losses() == []


def test_a_message_that_only_an_unfinished_compaction_has_is_taken_from_there(node: Path) -> None:
    files = vhost(node) / "msg_store_persistent"
    (files / "1.rdq").rename(files / "1.rdt")
    store = MemoryStore()
    run_import(store, node)
    assert store.contents() == EXPECTED


def test_a_queue_that_is_in_both_versions_has_each_message_once(node: Path) -> None:
    directory = vhost(node) / "queues/2"
    segment = published_1(2, IDS[1]) + published_1(5, IDS[2])
    (directory / "0.idx").write_bytes(segment)
    store = MemoryStore()
    run_import(store, node)
    assert store.contents()["default", "orders"] == [*EXPECTED["default", "orders"], b"stored"]


def test_a_broker_that_still_runs_is_noticed(node: Path) -> None:
    found = survey(node)
    index = vhost(node) / "queues/2/0.qi"
    index.write_bytes(index.read_bytes() + stored_2(IDS[2]))
    store = MemoryStore()
    with pytest.raises(NotANode, match="stop the broker first"):
        import_node(store, found, Importing(TENANTS), now=NOW, randomness=counting())
    assert "import" in store.disk.names(PATH)


def test_a_directory_of_something_else_is_none_of_a_node(tmp_path: Path) -> None:
    with pytest.raises(NotANode, match="name the data directory of a RabbitMQ node"):
        survey(tmp_path)
    (tmp_path / "msg_stores/vhosts/x").mkdir(parents=True)
    with pytest.raises(NotANode, match="no virtual host that can be read"):
        survey(tmp_path)
