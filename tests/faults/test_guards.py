"""Each guard taken out of the running program: then the same faults do what they must not.

A test that passes with its guard and without it shows nothing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fault_deployment import FaultDeployment, fault_deployment
from support.faults import FRAGMENT, Fault, Rule
from support.removed_guards import without as removed
from support.s3 import S3Server
from support.waiting import until

OWN_UID = """
import bottomless_server.stores.put_retries
from support.guards import replace
async def is_ours(*_):
    return False
replace("an object of our own uid is looked at", is_ours)
"""
UNKNOWN_OUTCOME = """
import bottomless_server.stores.put_retries as put_retries
from support.guards import guarded, replace
put_once = guarded("an unknown outcome of a put")
async def put_perhaps(*arguments):
    try:
        await put_once(*arguments)
    except put_retries.DriveAmbiguous:
        pass
replace("an unknown outcome of a put", put_perhaps)
"""
CHECKSUMS = """
import bottomless.formats.batch as batch
import bottomless.formats.chunk as chunk
check = batch.check
def check_no_body(what, fact, why):
    check(what, fact or "the checksum of its body" in why, why)
batch.check = check_no_body
chunk.verify_body = lambda *_: None
"""
"""Both, since each of them alone is enough."""


@contextmanager
def without(guard: str, directory: Path, seaweed: S3Server) -> Iterator[FaultDeployment]:
    """A deployment whose program has lost something at its start."""
    with fault_deployment(directory, seaweed, removed(directory, guard)) as deployment:
        yield deployment


def test_without_the_rule_for_our_own_uid_a_fragment_is_put_twice(
    tmp_path: Path, seaweed: S3Server
) -> None:
    with without(OWN_UID, tmp_path, seaweed) as deployment, deployment.load() as load:
        rule = Rule(Fault.LOSE_REPLY, "PUT", FRAGMENT, times=1)
        with deployment.proxy.disturbing(rule):
            load.append_until_it_happened(lambda: deployment.proxy.exhausted(rule))
        found = load.check("a lost reply")

    assert [key for key in found.unreachable if key.endswith(".fragment")]


def test_without_the_unknown_outcome_a_fragment_is_named_that_is_not_there(
    tmp_path: Path, seaweed: S3Server
) -> None:
    with without(UNKNOWN_OUTCOME, tmp_path, seaweed) as deployment, deployment.load() as load:
        rule = Rule(Fault.LOSE_REQUEST, "PUT", FRAGMENT, times=1)
        with deployment.proxy.disturbing(rule):
            load.append_until_it_happened(lambda: deployment.proxy.exhausted(rule))
        with pytest.raises(Exception, match=r"NoSuchKey|does not exist"):
            load.check("a lost request")


def test_without_the_checksums_of_chunk_and_batch_wrong_bytes_are_read(
    tmp_path: Path, seaweed: S3Server
) -> None:
    with without(CHECKSUMS, tmp_path, seaweed) as deployment, deployment.load() as load:
        for _ in range(12):
            load.append()
        until(load.local_is_free, 240, "local segments to go")
        # Not all of them, or no index would be read.
        rule = Rule(Fault.FLIP, "GET", FRAGMENT, chance=0.2)
        with (
            deployment.proxy.disturbing(rule),
            pytest.raises(AssertionError, match=re.escape("holds")),
        ):
            until(lambda: load.read() is None, 240, "a wrong byte")
