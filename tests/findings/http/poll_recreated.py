"""Long polls and followers of every form while the name is deleted and made again."""
import sys,json,threading,urllib.request,time
port=int(sys.argv[1])
def call(m,p,body=None,headers={},timeout=60):
    r=urllib.request.Request(f"http://127.0.0.1:{port}{p}",method=m,data=None if body is None else json.dumps(body).encode(),headers={"Content-Type":"application/json",**headers})
    try:
        with urllib.request.urlopen(r,timeout=timeout) as a: return a.status,a.read()
    except urllib.error.HTTPError as e: return e.code,e.read()
    except Exception as e: return -1,repr(e).encode()
n="re"+str(int(time.time()))
call("PUT",f"/v1/streams/{n}",{}); call("POST",f"/v1/streams/{n}/records",{"records":[{"value":f"old{i}"} for i in range(3)]})
sid=json.loads(call("GET",f"/v1/streams/{n}")[1])["stream_id"]
polls={
 "page json":(f"/v1/streams/{n}/records?offset=3&max_wait_ms=12000",{}),
 "page json next":(f"/v1/streams/{n}/records?offset=next&max_wait_ms=12000",{}),
 "page min2 of 3":(f"/v1/streams/{n}/records?offset=2&max_wait_ms=12000&min_records=3",{}),
 "page arrow":(f"/v1/streams/{n}/records?offset=3&max_wait_ms=12000",{"Accept":"application/vnd.apache.arrow.stream"}),
 "page chunks":(f"/v1/streams/{n}/records?offset=3&max_wait_ms=12000",{"Accept":"application/vnd.bottomless.chunks"}),
 "page ndjson":(f"/v1/streams/{n}/records?offset=3&max_wait_ms=12000",{"Accept":"application/x-ndjson"}),
 "offsets":(f"/v1/streams/{n}/offsets?wait_ms=12000&after=3",{}),
 "offsets no after":(f"/v1/streams/{n}/offsets?wait_ms=12000",{}),
 "ndjson follow":(f"/v1/streams/{n}/records?offset=3&follow=true",{}),
 "sse":(f"/v1/streams/{n}/records?offset=3",{"Accept":"text/event-stream"}),
}
out={}
t0=time.time()
def go(k):
    out[k]=(*call("GET",polls[k][0],headers=polls[k][1],timeout=20),time.time()-t0)
ts=[threading.Thread(target=go,args=(k,)) for k in polls]; [t.start() for t in ts]
time.sleep(1.5)
print("delete",call("DELETE",f"/v1/streams/{n}")[0],"at %.2f"%(time.time()-t0))
while True:
    st,b=call("PUT",f"/v1/streams/{n}",{})
    if st==201: break
    print("put",st,b[:100]); time.sleep(.05)
print("created anew at %.2f"%(time.time()-t0), "append",call("POST",f"/v1/streams/{n}/records",{"records":[{"value":f"NEW{i}"} for i in range(5)]})[0],"at %.2f"%(time.time()-t0))
# requests that come after the creation was acknowledged
for k in range(3):
    st,b=call("GET",f"/v1/streams/{n}/records?offset=3&max_wait_ms=300"); print("fresh long poll after creation",st,b[:90])
[t.join() for t in ts]
for k,(st,b,at) in out.items(): print(f"{k:18} {st} at {at:.2f} {b[-260:] if st==200 else b[:90]}", "NEW RECORDS OF THE OTHER STREAM" if b"NEW" in b else "")
print("old id",sid)
