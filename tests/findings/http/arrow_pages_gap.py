"""Store | hole | local log: every form of reading over it, before and after the loss is accepted, and under trims."""
import sys,json,time,tempfile
sys.path[:0]=["./tests","./docs/examples","."]
from pathlib import Path
from support.server import AllInOne
import httpx
tmp=Path(tempfile.mkdtemp(dir="/tmp"))
P="/v1/streams/orders"
S={"BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX":"65536","BOTTOMLESS_INGEST_LOCAL_KEEP_MS":"100","BOTTOMLESS_READER_ROOT_TTL_MS":"50","BOTTOMLESS_INGEST_CHECKPOINT_BYTES":"4096"}
server=AllInOne(tmp/"data",S)
def show(c,what,url,headers={},**kw):
    try:
        with c.stream("GET",url,headers=headers,timeout=kw.get("t",6)) as r:
            b=b""
            try:
                for x in r.iter_bytes():
                    b+=x
                    if len(b)>2000000: break
            except httpx.HTTPError as e: b+=b" ...open: "+repr(e).encode()[:30]
            st=r.status_code; nx=r.headers.get("page-next-offset"); g=r.headers.get("page-gaps")
    except Exception as e: print(what,repr(e)); return
    if "json" in r.headers.get("content-type","") and b[:1]==b"{" and b"\n" not in b:
        m=json.loads(b); s={k:m[k] for k in ("code","start_offset","next_offset","first_offset","readable_offset","clamped","gaps","up_to_date","offset","committed_offset","retryable") if k in m}
        if "records" in m: s["records"]=[m["records"][0]["offset"],m["records"][-1]["offset"]] if m["records"] else []
    else: s=(nx,g,len(b),b[-170:] if len(b)<100000 and b"{" in b else "")
    print(f"{what:34} {st} {s}")
with server:
    with server.client() as c:
        c.put(P,json={"fragment":{"max_age_ms":1000}}).raise_for_status()
        for n in range(10): c.post(P+"/records",json={"records":[{"value":f"{n:03d}".rjust(8000)}]}).raise_for_status()
        for _ in range(100):
            if c.get(P+"/offsets").json()["object_store_next_offset"]==10: break
            time.sleep(.2)
        e=c.get(P).headers["etag"]; print("patch",c.patch(P,json={"fragment":{"max_age_ms":86400000}},headers={"If-Match":"*"}).status_code)
        time.sleep(25)
        ts={}
        for n in range(10,90):
            a=c.post(P+"/records",json={"records":[{"value":f"{n:03d}".rjust(8000)}]}).json(); ts[n]=a["timestamp"]
        print("stored",c.get(P+"/offsets").json()["object_store_next_offset"])
    server.kill()
    segs=sorted(server.ingest_dir.glob("streams/*/*.segment")); print([int(s.stem) for s in segs])
    stored=10
    lost=[s for s in segs[:-1]][:3]
    for s in lost: s.unlink(); s.with_suffix(".index").unlink(missing_ok=True)
    begins=int(segs[3].stem); print("log begins at",begins)
    server.start()
    with server.client() as c:
        r=c.post("/v1/admin/streams/orders/gap",json={"accept_loss":True,"next_offset":begins}); time.sleep(3); print(c.get("/v1/operations/"+r.json()["operation_id"]).json()["result"])
        from bottomless import Client
        with Client(str(c.base_url).rstrip("/")) as k:
            for start,until in ((0,begins),(10,begins),(0,35)):
                pages=[(p.table.num_rows,p.next_offset,p.gaps) for p in k.arrow_pages("orders",start,until_offset=until)]
                one=k.read_arrow("orders",start,until_offset=until)
                print("arrow_pages",start,"until",until,"->",pages,"| read_arrow gives",(one.table.num_rows,one.next_offset,one.gaps))
            with k.consumer("orders",start=9,max_bytes=1000) as con:
                for _ in range(4):
                    p=con.poll(3); print("consumer:",[r["offset"] for r in p.records][:3],p.next_offset,p.gaps)
            with k.consumer("orders",start=9) as con:
                t=con.tables(max_bytes=1000)
                for _ in range(4):
                    p=t.poll(3); print("tables:",p.table["offset"].to_pylist()[:3],p.next_offset,p.gaps)
