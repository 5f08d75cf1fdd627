"""A long poll that begins after the answer to PUT of a name that was made again: is it ever told that there is no such stream?"""
import sys,json,threading,time,http.client,collections
port=int(sys.argv[1]); n="fresh%d"%time.time(); seen=collections.Counter(); odd=[]
def call(m,p,b=None):
    c=http.client.HTTPConnection("127.0.0.1",port,timeout=30); c.request(m,p,body=None if b is None else json.dumps(b),headers={"Content-Type":"application/json"} if b is not None else {}); r=c.getresponse(); d=r.read(); c.close(); return r.status,d
call("PUT",f"/v1/streams/{n}",{})
end=time.time()+40; rounds=0
while time.time()<end:
    rounds+=1
    call("POST",f"/v1/streams/{n}/records",{"records":[{"value":"a"}]})
    ws=[threading.Thread(target=call,args=("GET",f"/v1/streams/{n}/records?offset={o}&max_wait_ms=3000")) for o in (1,"next")]; [w.start() for w in ws]; time.sleep(.12)
    call("DELETE",f"/v1/streams/{n}")
    while True:
        st,b=call("PUT",f"/v1/streams/{n}",{})
        if st==201: sid=json.loads(b)["stream_id"]; break
    for q in ("records?offset=1&max_wait_ms=50","records?offset=next&max_wait_ms=50","offsets?wait_ms=50&after=0","records?offset=first"):
        st,b=call("GET",f"/v1/streams/{n}/{q}"); m=json.loads(b); seen[q.split('=')[0],st,m.get("code"),m.get("stream_id")==sid]+=1
    [w.join() for w in ws]
print(rounds,"rounds"); [print("  ",k,v) for k,v in seen.items()]
