"""Objects of the store that are damaged or gone: M33, M34 and H21; and M50.

One stream, of which nothing is left on the ingest node, is read by a reader that keeps nothing:
whatever is answered comes from the objects as they are now. Each test puts back what it harmed.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.places import COLD, FREEING, free_local
from support.served import Served
from support.waiting import until

from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.fragment import HEADER_SIZE as FRAGMENT_HEADER_SIZE

FANOUT: Final = 2
SETTINGS: Final = {
    **FREEING,
    **COLD,
    "BOTTOMLESS_MANIFEST_FANOUT": str(FANOUT),
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "0.3",
    "BOTTOMLESS_UPLOADER_DAMAGE_RETRY_SECONDS": "0.3",
}
FRAGMENTS: Final = 7
EACH: Final = 5
"""Records of a fragment."""


class Tiered(NamedTuple):
    """A stream that is in object storage alone, and where its objects lie."""

    stream: Stream
    home: Path
    server: Served

    def fragment(self, number: int) -> tuple[str, Path]:
        listed = self.stream.client.get(f"{self.stream.path}/fragments").json()["fragments"]
        one = next(one for one in listed if one["first_offset"] == number * EACH)
        return one["id"], self.home / "data" / (one["id"].replace("-", ".") + ".fragment")

    def groups(self) -> list[Path]:
        return sorted(self.home.glob("metadata/*.g1"))

    def root(self) -> Path:
        return max(self.home.glob("metadata/root.*"))

    def verified(self) -> list[dict[str, Any]]:
        """The faults that verification finds."""
        client = self.stream.client
        asked = client.post(f"{self.stream.path}/manifest/verify", json={"checksums": True})
        assert asked.status_code == 202, asked.text

        def done() -> dict[str, Any] | None:
            shown: dict[str, Any] = client.get(asked.headers["location"]).json()
            return shown if shown["state"] in ("succeeded", "failed") else None

        shown = until(done, what="the end of a verification")
        assert shown["state"] == "succeeded", shown
        assert shown["result"]["sound"] is not bool(shown["result"]["faults"])
        faults: list[dict[str, Any]] = shown["result"]["faults"]
        return faults

    def is_served(self) -> bool:
        return self.stream.get("first").status_code == 200

    def answers(self) -> dict[int, httpx.Response]:
        """Answers other than the records that were appended, by the offset asked for."""
        refused = {}
        for first in range(0, FRAGMENTS * EACH, EACH):
            answer = self.stream.get(first, limit=EACH, on_out_of_range="error")
            if answer.status_code != 200:
                refused[first] = answer
                continue
            read = [(one["offset"], one["value"]) for one in answer.json()["records"]]
            assert read == [(first + n, value(first + n)) for n in range(EACH)]
        return refused


def value(offset: int) -> str:
    return f"value {offset} ".ljust(200, "x")


def tiered(running: Served, client: httpx.Client) -> Tiered:
    stream = new_stream(client, QUICK)
    for first in range(0, FRAGMENTS * EACH, EACH):
        stream.append(*(value(first + n) for n in range(EACH)))
        stream.wait_uploaded()
    free_local(running, stream)
    home = running.objects / "default" / str(stream.bounds()["stream_id"])
    return Tiered(stream, home, running)


@pytest.fixture(scope="module")
def here(running: Served, client: httpx.Client) -> Tiered:
    made = tiered(running, client)
    assert made.answers() == {}
    assert made.verified() == []
    assert len(made.groups()) >= 2
    return made


@contextmanager
def harmed(path: Path, harm: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """While inside, the object holds something else, or is not there."""
    good = path.read_bytes()
    path.unlink()
    bad = harm(good)
    if bad is not None:
        path.write_bytes(bad)
    yield
    path.unlink(missing_ok=True)
    path.write_bytes(good)


def flipped(place: float) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        at = int(place * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return flip


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def gone(_: bytes) -> None:
    return None


def newer(data: bytes) -> bytes:
    """As a later version would write its first chunk: good, but for who does not know it."""
    header = bytearray(data[FRAGMENT_HEADER_SIZE:][:CHUNK_HEADER_SIZE])
    header[VERSION_BYTE] += 1
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    end = FRAGMENT_HEADER_SIZE + CHUNK_HEADER_SIZE
    return data[:FRAGMENT_HEADER_SIZE] + bytes(header) + data[end:]


VERSION_BYTE: Final = 4
HARMS: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "flipped in its header": flipped(0.02),
    "flipped in its data": flipped(0.5),
    "flipped in its index": flipped(0.9),
    "cut": cut,
    "gone": gone,
    "of a newer version": newer,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_fragment_that_is_damaged_or_gone_is_named_and_the_others_are_read(
    here: Tiered, harm: str
) -> None:
    """M33, H21; and M51: what a later version wrote is refused, and not guessed at."""
    number = 3
    fragment_id, path = here.fragment(number)
    with harmed(path, HARMS[harm]):
        refused = here.answers()
        faults = here.verified()
        if harm == "flipped in its header":
            # No read needs it: the manifest says it all. Verification looks at every byte.
            assert refused == {}
        else:
            assert list(refused) == [number * EACH]
            code = "data-missing" if harm == "gone" else "data-corrupt"
            problem = problem_of(refused[number * EACH], 502, code)
            assert problem["fragment_id"] == fragment_id
            assert not problem["retryable"]
    if harm == "of a newer version":
        # A part that was sealed anew under a right checksum of its own is no damage to one
        # around it: such sums are linear. Verification looks for damage.
        return
    [fault] = faults
    kind = {"gone": "fragment-missing", "cut": "fragment-size"}.get(harm, "fragment-checksum")
    assert (fault["kind"], fault["id"]) == (kind, fragment_id)
    assert here.answers() == {}
    log = here.server.log()
    if "flipped in its data" in harm:
        assert "fragment_reread" in log, "damage on the way would be an error too"
        assert "fragment_corrupt" in log


@pytest.mark.parametrize("harm", ["flipped in its header", "flipped in its data", "cut", "gone"])
def test_what_a_group_names_cannot_be_found_without_it_and_the_rest_can(
    here: Tiered, harm: str
) -> None:
    """M33, M34."""
    first, second, *_ = here.groups()
    with harmed(first, HARMS[harm]):
        refused = here.answers()
        faults = here.verified()
    assert list(refused) == list(range(0, int(second.name[:20]), EACH))
    for answer in refused.values():
        assert_not_empty(answer, harm)
    [fault] = faults
    assert fault["kind"] == ("group-missing" if harm == "gone" else "group-corrupt")
    assert (fault["first_offset"], fault["last_offset"]) == (0, int(second.name[:20]) - 1)
    if harm == "gone":
        assert "manifest_node_missing" in here.server.log(), "no alarm"
    assert here.answers() == {}
    assert here.verified() == []


SPECS: Final = ("first", "last", "tail:3", "timestamp:0")


@pytest.mark.parametrize("harm", ["flipped in its data", "cut", "gone"])
def test_while_the_root_is_damaged_or_gone_no_read_is_answered_with_less(
    here: Tiered, harm: str
) -> None:
    """M33, M34: with a manifest that has the root in memory still."""
    with harmed(here.root(), HARMS[harm]):
        refused = [*here.answers().values(), *(here.stream.get(spec) for spec in SPECS)]
        faults = here.verified()
    assert len(refused) == FRAGMENTS + len(SPECS)
    for answer in refused:
        assert_not_empty(answer, harm)
    assert [fault["kind"] for fault in faults] == [
        "root-missing" if harm == "gone" else "root-corrupt"
    ]
    assert here.answers() == {}
    assert here.verified() == []


def assert_not_empty(answer: httpx.Response, harm: str) -> None:
    """Whoever finds it, the reader or the manifest, says the same of it."""
    problem_of(answer, 502, "data-missing" if harm == "gone" else "data-corrupt")


@pytest.mark.parametrize(
    "name",
    ["..%2Fx", "%2E%2E", "a%2Fb", "a%00b", "%D0%B0bc", "b" * 255, "b" * 300, "a*", "a%20b", "~a"],
)
def test_a_name_that_could_collide_is_refused_and_leaves_nothing(
    running: Served, client: httpx.Client, name: str
) -> None:
    """M50."""
    before = set(running.objects.glob("*/*"))
    assert client.put(f"/v1/streams/{name}").status_code in (400, 404)
    assert {path.parts[-2] for path in set(running.objects.glob("*/*")) - before} <= {".tmp"}


def test_names_that_are_alike_are_streams_of_their_own(
    running: Served, client: httpx.Client
) -> None:
    """M50: each has a prefix of its own in the store, and only what was sent to it."""
    names = [
        "c",
        "cc",
        "c-c",
        "c_c",
        "c.c",
        "C",
        "CC",
        "c-",
        "c.g1",
        "c.fragment",
        "data",
        "stream",
    ]
    ids: dict[str, str] = {}
    for name in names:
        created = client.put(f"/v1/streams/{name}", json=QUICK)
        assert created.status_code == 201, created.text
        ids[name] = created.json()["stream_id"]
        Stream(client, name).append(f"only in {name}")
    assert len(set(ids.values())) == len(names)
    for name in names:
        stream = Stream(client, name)
        stream.wait_uploaded()
        assert [one["value"] for one in stream.page("first")["records"]] == [f"only in {name}"]
        assert len(list((running.objects / "default" / ids[name] / "data").iterdir())) == 1


def test_after_a_restart_a_missing_root_is_an_alarm_and_nothing_is_put_in_its_place(
    running: Served, client: httpx.Client
) -> None:
    """M34: appends are taken, and wait; with the object back all of it is there."""
    streams = {harm: tiered(running, client) for harm in ("gone", "flipped in its data")}
    with ExitStack() as harms:
        roots = {}
        for harm, one in streams.items():
            roots[harm] = one.root()
            harms.enter_context(harmed(roots[harm], HARMS[harm]))
        running.restart()
        for harm, one in streams.items():
            described = [
                client.get(one.stream.path + part) for part in ("", "/offsets", "/fragments")
            ]
            asked = [one.stream.get(spec) for spec in SPECS]
            trimmed = client.post(f"{one.stream.path}/trim", json={"before_offset": 10})
            for answer in [*one.answers().values(), *described, *asked, trimmed]:
                assert_not_empty(answer, harm)
            assert one.stream.append("after")["first_offset"] == FRAGMENTS * EACH
            [fault] = one.verified()
            assert fault["kind"] == ("root-missing" if harm == "gone" else "root-corrupt")
        until(lambda: "a root is missing" in running.log(), what="an alarm")
        until(lambda: "uploading failed" in running.log(), what="an upload that is held up")
        for harm, one in streams.items():
            newest = max(one.home.glob("metadata/root.*"))
            assert newest <= roots[harm], "a root was put over one that nobody could read"
    for one in streams.values():
        one.stream.wait_uploaded()
        assert one.answers() == {}
        assert one.verified() == []
        [last] = one.stream.page("last")["records"]
        assert (last["offset"], last["value"]) == (FRAGMENTS * EACH, "after")


def test_a_rebuild_restores_what_the_objects_hold_without_their_roots(
    running: Served, client: httpx.Client
) -> None:
    """M34: with coordination empty; one stream lost its newest root, one all of its manifest."""
    one, other = tiered(running, client), tiered(running, client)
    assert running.stop() == 0
    one.root().unlink()
    for node in other.home.glob("metadata/*"):
        node.unlink()
    shutil.rmtree(running.data_dir / "valkey")
    running.start()

    until(lambda: client.get("/v1/streams").status_code == 503, what="the loss to be noticed")
    problem_of(one.stream.get("first"), 503, "coordination-regressed")
    begun = client.post("/v1/admin/rebuild")
    assert begun.status_code == 202, begun.text
    path = f"/v1/operations/{begun.json()['operation_id']}"
    until(lambda: client.get(path).json()["state"] == "succeeded", what="the rebuild")
    for found in (one, other):
        until(found.is_served, what="an owner")
        assert found.answers() == {}
        assert found.verified() == []
        assert found.stream.append("after")["first_offset"] >= FRAGMENTS * EACH
