"""The proxy itself: a test of faults shows nothing if they do not happen."""

import random
import time

import httpx
import pytest
from support.fault_proxy import running_fault_proxy
from support.faults import Fault, Rule
from support.latencies import Latency
from support.s3 import S3Server


def test_a_fault_that_never_happens_fails_its_test(seaweed: S3Server) -> None:
    with running_fault_proxy(seaweed.endpoint) as proxy:
        met, missed = Rule(Fault.DRIP, "GET"), Rule(Fault.STALL, "PATCH")
        never = pytest.raises(AssertionError, match=r"never happened: .*STALL")
        with never, proxy.disturbing(met, missed):
            assert httpx.get(f"{proxy.endpoint}/healthz").is_success
        assert proxy.count(met) == 1


def statuses(seaweed: S3Server, seed: int) -> list[int]:
    with running_fault_proxy(seaweed.endpoint, seed) as proxy, httpx.Client() as client:
        proxy.arm(Rule(Fault.REFUSE, chance=0.5))
        return [client.get(f"{proxy.endpoint}/healthz").status_code for _ in range(40)]


def test_a_seed_chooses_the_same_requests_again(seaweed: S3Server) -> None:
    assert statuses(seaweed, 1) == statuses(seaweed, 1)
    assert statuses(seaweed, 1) != statuses(seaweed, 2)


def test_what_is_not_named_passes_as_it_is(seaweed: S3Server) -> None:
    with running_fault_proxy(seaweed.endpoint) as proxy, httpx.Client() as client:
        proxy.arm(Rule(Fault.LOSE_REPLY, path="/elsewhere"))
        near, far = (client.get(f"{url}/healthz") for url in (proxy.endpoint, seaweed.endpoint))
    assert (near.status_code, near.content) == (far.status_code, far.content)
    assert proxy.story == []


def test_no_reply_comes_earlier_than_the_latency_of_its_method_says(seaweed: S3Server) -> None:
    latency = Latency(150, 300)
    drawn = latency.draw(random.Random("latency 7")) / 1000
    with running_fault_proxy(seaweed.endpoint, 7, {"GET": latency}) as proxy:
        begun = time.monotonic()
        assert httpx.get(f"{proxy.endpoint}/healthz").is_success
    assert time.monotonic() - begun >= drawn
