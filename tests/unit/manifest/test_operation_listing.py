"""The list of operations over HTTP: pages, the filter, and what is not said there."""

from support.manifest import ManifestHarness
from unit.manifest.test_manifest_api import running
from unit.manifest.test_stream_replicas import an_operation

LIST = "/v1/operations"


async def test_operations_are_listed_in_pages_without_what_may_be_long() -> None:
    harness = ManifestHarness()
    async with running(harness) as service:
        begun = list[str]()
        for _ in range(3):
            harness.clock.now += 1
            answer = await service.public.post("/v1/admin/rebalance", json={})
            await an_operation(service, answer)
            begun.append(answer.json()["operation_id"])

        first = (await service.public.get(LIST, params={"limit": 2})).json()
        token = first["next_page_token"]
        rest = (await service.public.get(LIST, params={"limit": 2, "page_token": token})).json()
        filtered = (await service.public.get(LIST, params={"state": "failed"})).json()
        other = {"state": "failed", "page_token": token}
        refused = await service.public.get(LIST, params=other)
        unknown = await service.public.get(LIST, params={"state": "done"})

    listed = [*first["items"], *rest["items"]]
    assert [one["operation_id"] for one in listed] == begun[::-1]
    assert rest["next_page_token"] is None
    assert {one["state"] for one in listed} == {"succeeded"}
    assert {one["kind"] for one in listed} == {"rebalance"}
    assert not {"progress", "result", "error"} & set(listed[0])
    assert filtered == {"items": [], "next_page_token": None}
    # A token goes on with the list that it was made for, and with no other.
    assert (refused.status_code, unknown.status_code) == (400, 400)
