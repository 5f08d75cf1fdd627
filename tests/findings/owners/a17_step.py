"""One step of a17, under whichever build PYTHONPATH names: python a17_step.py DIR STEP"""
import asyncio, pickle, sys, os, errno
from pathlib import Path
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from bottomless_server.ingest.staged import batches as staged_module
staged_module.SWEEP_SECONDS = 1e6
import bottomless_server
from unit.ingest.house import *
from unit.ingest.test_staged import stage, commit, cut_off, LARGE, staged_of
from bottomless.model.limits import KIB
D, STEP = Path(sys.argv[1]), sys.argv[2]
build = "old" if "/old/" in bottomless_server.__file__ else "new"
def show(what, a):
    try: b = a.json()
    except Exception: b = {}
    b = {k: v for k, v in b.items() if k in ("code","outcome","first_offset","next_offset","count","duplicates","stored_parts","expected_seq")}
    print(f"[{build}] {what} -> {a.status_code} {b} {'replayed' if a.headers.get('idempotent-replayed') else ''}", flush=True)
async def main():
    house = House(D/"ingest", ingest_group_bytes_max=4*KIB)
    state = D/"coordination.pickle"
    if state.exists():
        house.coordination._stored, house.time.wall, house.time.elapsed = pickle.loads(state.read_bytes())
        house.time.advance(60_000)
    else:
        await house.declare()
    await house.start()
    if STEP == "open":
        await cut_off(house, 1)
    elif STEP == "plain8":
        show("job: plain append, Txn-Number 8", await house.append_raw(b'{"records":[{"value":"8"}]}', **{"producer-id":"job","txn-number":"8"}))
    elif STEP == "strict":
        show("job: plain append, Producer-Seq 0", await house.append_raw(b'{"records":[{"value":"8"}]}', **{"producer-id":"job","producer-seq":"0"}))
    elif STEP == "repeat7":
        show("job: commit 7 again", await commit(house, await stage(house, "z")))
    elif STEP == "list":
        a = await house.client.get(f"/v1/streams/{NAME}/producers", params={"limit": 1}); print(f"[{build}] list", a.status_code, a.text[:300])
    elif STEP == "leave":
        await house.append("touch")
        await house.published(house.appender.log.next_offset)
    if STEP != 'open': await house.service.drain()
    await house.aclose()
    r = await house.record()
    print(f"[{build}] {STEP}: dirty {r.dirty}")
    state.write_bytes(pickle.dumps((house.coordination._stored, house.time.wall, house.time.elapsed)))
asyncio.run(main())
