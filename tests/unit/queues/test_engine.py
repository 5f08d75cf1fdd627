"""The engine of queues on a real directory: publish, receive, acknowledge, and the space comes back."""

from pathlib import Path

from unit.queues.engine_harness import TENANT, an_engine


async def test_a_message_is_published_received_acknowledged_and_gone(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        answer = await engine.publish("jobs", values=[b"one", b"two"])
        (taken,) = await engine.receive("jobs", limit=1)
        assert bytes(taken.value) == b"one"
        assert (taken.sequence, taken.deliveries) == (0, 1)
        assert taken.message_id == answer.queues[0].messages[0].message_id
        assert await engine.values("jobs") == [b"two"]
        assert await engine.values("jobs") == []
        assert await engine.ack("jobs", [taken]) == 1
        settled = await engine.engine.ack(TENANT, "jobs", [taken.receipt])
        assert (settled.done, settled.gone) == (0, [taken.receipt])
        assert (await engine.describe("jobs")).sums.item_count == 1


async def test_what_was_published_is_there_after_a_restart(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one", b"two", b"three"])
        (first,) = await engine.receive("jobs", limit=1)
        await engine.restart()
        assert await engine.drain("jobs") == [b"two", b"three"]
        assert await engine.ack("jobs", [first]) == 1


async def test_the_space_of_acknowledged_messages_comes_back(tmp_path: Path) -> None:
    async with an_engine(tmp_path, file_bytes_max=10_000) as engine:
        await engine.create("jobs")
        values = [bytes([number]) * 1_000 for number in range(50)]
        for value in values:
            await engine.publish("jobs", values=[value])
        taken = await engine.receive("jobs", limit=100)
        await engine.ack("jobs", [each for each in taken if each.sequence % 5])
        while await engine.engine.tend():
            pass
        figures = await engine.engine.storage()
        assert figures.disk_bytes < 2 * figures.live_bytes + 10_000
        await engine.ack("jobs", taken)
        await engine.engine.tend()
        assert (await engine.engine.storage()).disk_bytes <= 10_000
        assert len(list((tmp_path / "messages").iterdir())) == 1


async def test_a_message_that_fails_too_often_is_a_dead_letter_in_its_queue_once(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("dead")
        await engine.create("jobs", max_deliveries=2, dead_letter={"queue": "dead"})
        await engine.publish("jobs", values=[b"poison"])
        for _ in range(2):
            (taken,) = await engine.receive("jobs")
            await engine.engine.nack(TENANT, "jobs", [taken.receipt])
        await engine.arrived()
        (letter,) = await engine.receive("dead")
        assert bytes(letter.value) == b"poison"
        assert letter.dead_letter is not None
        assert letter.dead_letter[:3] == ("jobs", "max-deliveries", 2)
        assert dict(letter.headers) == {
            "queue": b"jobs",
            "queue-reason": b"max-deliveries",
            "queue-message-id": taken.message_id.hex().encode(),
            "queue-deliveries": b"2",
        }
        assert (await engine.describe("jobs")).sums.item_count == 0


async def test_what_happened_and_what_is_there_is_counted(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        rounds: list[tuple[float, int]] = []
        engine.engine.figures().on_round = lambda *each: rounds.append(each)
        await engine.create("jobs", dead_letter={"stream": "nowhere"})
        await engine.publish("jobs", values=[b"one", b"two", b"three"])
        first, second = await engine.receive("jobs", limit=2)
        await engine.ack("jobs", [first])
        await engine.engine.nack(TENANT, "jobs", [second.receipt], dead_letter=True)
        figures = engine.engine.figures()
        totals = figures.totals
        assert (totals.published, totals.delivered, totals.acked) == (3, 2, 1)
        assert (totals.dead_lettered, figures.dead_lettered) == (1, {"rejected": 1})
        assert len(rounds) >= 5
        assert figures.rounds >= len(rounds)
        gauges = await engine.engine.gauges()
        assert (gauges.sums.ready, gauges.outgoing) == (1, 1)
        assert gauges.oldest_outgoing_at == engine.now
        assert gauges.disk_bytes > gauges.live_bytes > 0
        assert gauges.ledger_bytes > 0
