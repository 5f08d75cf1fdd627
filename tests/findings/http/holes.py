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
    def all_forms(c,label):
        print("----",label)
        NB="application/x-ndjson"; AR="application/vnd.apache.arrow.stream"; CH="application/vnd.bottomless.chunks"
        show(c,"offsets",P+"/offsets"); show(c,"offsets wait",P+"/offsets?wait_ms=1000&after=5")
        for o in ("first","0","9","10","15",str(begins-1),str(begins),"tail:5","tail:60","tail:85","last","next","timestamp:"+ts[12],"timestamp:"+ts[89],"interval:1h"):
            show(c,f"page {o}",P+f"/records?offset={o}&limit=1000")
        show(c,"page 5 strict",P+"/records?offset=5&limit=1000&on_out_of_range=error")
        show(c,"page 5 until 40",P+"/records?offset=5&limit=1000&until_offset=40")
        show(c,"page 15 until 12",P+"/records?offset=15&limit=1000&until_offset=12")
        show(c,"page 5 min 8 wait",P+"/records?offset=5&limit=1000&max_wait_ms=1500&min_records=8")
        show(c,"page 10 wait",P+"/records?offset=10&limit=1000&max_wait_ms=1500")
        show(c,"arrow 5",P+"/records?offset=5",{"Accept":AR}); show(c,"chunks 5",P+"/records?offset=5",{"Accept":CH}); show(c,"chunks 10",P+"/records?offset=10",{"Accept":CH})
        show(c,"ndjson follow 9",P+"/records?offset=9&follow=true",{"Accept":NB},t=3); show(c,"ndjson follow 12",P+"/records?offset=12&follow=true",{"Accept":NB},t=3)
        show(c,"sse 9",P+"/records?offset=9",{"Accept":"text/event-stream"},t=3)
        show(c,"record 12",P+"/records/12"); show(c,"record 9",P+"/records/9"); 
        for sp in ("15","timestamp:"+ts[12],"last"): show(c,"resolve "+sp,P+f"/offsets/resolve?spec={sp}")
        show(c,"fragments",P+"/fragments")
    with server.client() as c:
        all_forms(c,"hole, not accepted")
        r=c.post(P+"/trim",json={"before_offset":15}); print("trim to 15:",r.status_code,r.text[:200]); time.sleep(1)
        show(c,"offsets",P+"/offsets"); show(c,"page first",P+"/records?offset=first&limit=1000"); show(c,"page 0",P+"/records?offset=0&limit=1000"); show(c,"sse first",P+"/records?offset=first",{"Accept":"text/event-stream"},t=3)
        r=c.post("/v1/admin/streams/orders/gap",json={"accept_loss":True,"next_offset":begins}); print("gap",r.status_code,r.text[:300]); time.sleep(2)
        if r.status_code==202: print(c.get("/v1/operations/"+r.json()["operation_id"]).text[:400])
        all_forms(c,"hole accepted")
