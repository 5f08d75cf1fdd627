"""Followers that stall longer than any limit, read little bits, break off, and go on from the last whole batch.
usage: port stream seconds"""
import sys,json,socket,threading,time,random,urllib.request
port,name,secs=int(sys.argv[1]),sys.argv[2],float(sys.argv[3]); ends=time.time()+secs
def call(m,p,body=None,h={}):
    r=urllib.request.Request(f"http://127.0.0.1:{port}{p}",method=m,data=None if body is None else json.dumps(body).encode(),headers={"Content-Type":"application/json",**h})
    try:
        with urllib.request.urlopen(r,timeout=30) as a: return a.status,a.read()
    except urllib.error.HTTPError as e: return e.code,e.read()
    except Exception as e: return -1,repr(e).encode()
call("PUT",f"/v1/streams/{name}",{"fragment":{"max_age_ms":1000}})
acked=[0]; stop=False
def produce():
    k=0
    rnd=random.Random(1)
    while not stop:
        c=rnd.randint(1,40)
        st,b=call("POST",f"/v1/streams/{name}/records",{"records":[{"value":f"{k+i} "+"x"*rnd.choice([10,1000,20000])} for i in range(c)]},{"Producer-Id":"p","Producer-Epoch":"1","Producer-Seq":str(k)})
        if st==200: k+=c; acked[0]=k
        else: time.sleep(.2)
        time.sleep(.02)
faults=[]; stats={}
def unchunk(buf):
    """decode all whole HTTP chunks in buf; returns body bytes (also of the partial one) and whether ended"""
    out=b""; ended=False
    while True:
        i=buf.find(b"\r\n")
        if i<0: break
        try: n=int(buf[:i].split(b";")[0],16)
        except ValueError: return out,buf,None
        if n==0: ended=True; break
        out+=buf[i+2:i+2+n]
        if len(buf)<i+2+n+2: break
        buf=buf[i+2+n+2:]
    return out,buf,ended
def follow(kind,seed):
    rnd=random.Random(seed); pos=0; sid=None; st=stats.setdefault(f"{kind}{seed}",{"conns":0,"ends":{},"records":0,"broke":0})
    while time.time()<ends:
        s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,4096)
        try: s.connect(("127.0.0.1",port))
        except OSError: time.sleep(.3); continue
        s.settimeout(4)
        acc="application/x-ndjson" if kind=="nd" else "text/event-stream"
        lei=f"Last-Event-ID: {sid}:{pos}\r\n" if kind=="sse" and sid and rnd.random()<.5 else ""
        q=f"offset={pos}&on_out_of_range=error"+("&follow=true" if kind=="nd" else "")+(f"&expect_stream_id={sid}" if sid else "")+(f"&max_bytes={rnd.choice([1000,100000,1000000])}")
        s.sendall(f"GET /v1/streams/{name}/records?{q} HTTP/1.1\r\nHost: localhost\r\nAccept: {acc}\r\n{lei}\r\n".encode()); st["conns"]+=1
        data=b""; stall_at=rnd.choice([0,0,3000,30000,200000,10**9]); t=time.time(); life=rnd.choice([1,4,9,30]); stalled=False
        try:
            while time.time()<min(t+life+12,ends+5):
                if not stalled and len(data)>=stall_at: time.sleep(rnd.choice([3,5,8])); stalled=True
                if len(data)>30_000_000: break
                d=s.recv(rnd.choice([1,100,4096,65536,262144]))
                if not d: break
                data+=d
                if not stalled and time.time()>t+life: break
        except OSError: pass
        s.close()
        h,_,b=data.partition(b"\r\n\r\n")
        if not h: continue
        if b"200" not in h.split(b"\r\n")[0]:
            st["ends"][h.split(b"\r\n")[0].decode()]=st["ends"].get(h.split(b"\r\n")[0].decode(),0)+1; time.sleep(.2); continue
        for l in h.split(b"\r\n"):
            if l.lower().startswith(b"stream-id:"): sid=l.split(b":",1)[1].strip().decode()
        body,_,ended=unchunk(b)
        if ended is None: faults.append((kind,seed,"bad chunk framing")); continue
        end=None
        if kind=="nd":
            lines=body.split(b"\n"); held=[]
            for ln in lines[:-1]:
                try: m=json.loads(ln)
                except ValueError: faults.append((kind,seed,"not JSON",ln[:80])); break
                c=m.get("_control")
                if c is None: held.append(m); continue
                if "end" in c:
                    end=c
                    if held: faults.append((kind,seed,"end within a batch")) 
                    break
                if "time" in c:
                    if held: faults.append((kind,seed,"heartbeat within a batch"))
                    if c["next_offset"]!=pos: faults.append((kind,seed,"heartbeat says",c["next_offset"],"at",pos))
                    continue
                for r in held:
                    if r["offset"]!=pos or int(r["value"].split()[0])!=pos: faults.append((kind,seed,"at",pos,"came",r["offset"],r["value"][:10]))
                    pos=r["offset"]+1; st["records"]+=1
                held=[]
                if c["next_offset"]!=pos: faults.append((kind,seed,"batch ends at",c["next_offset"],"we are at",pos)); pos=c["next_offset"]
        else:
            for ev in body.split(b"\n\n")[:-1]:
                f=dict(l.split(b": ",1) for l in ev.split(b"\n") if not l.startswith(b":"))
                if not f: continue
                try: m=json.loads(f[b"data"])
                except Exception: faults.append((kind,seed,"bad event",ev[:80])); break
                if f[b"event"]==b"end": end={**m,"end":m["reason"]}; break
                if f[b"event"]==b"heartbeat":
                    if m["next_offset"]!=pos: faults.append((kind,seed,"heartbeat says",m["next_offset"],"at",pos))
                    continue
                for r in m["records"]:
                    if r["offset"]!=pos: faults.append((kind,seed,"at",pos,"came",r["offset"]))
                    pos=r["offset"]+1; st["records"]+=1
                if m["next_offset"]!=pos: faults.append((kind,seed,"batch ends",m["next_offset"],pos))
        if end is None: st["broke"]+=1
        else:
            st["ends"][end["end"]]=st["ends"].get(end["end"],0)+1
            # go on from what we were told: the end's own word
            if end["next_offset"]!=pos: faults.append((kind,seed,"end",end["end"],"names",end["next_offset"],"whole batches end at",pos,"stalled",stalled))
threads=[threading.Thread(target=follow,args=(k,i),daemon=True) for k in ("nd","sse") for i in range(4)]
p=threading.Thread(target=produce); p.start(); [t.start() for t in threads]
while time.time()<ends: time.sleep(.5)
stop=True; p.join(); [t.join(30) for t in threads]
print("acknowledged",acked[0]); [print(k,v) for k,v in sorted(stats.items())]
print("FAULTS",len(faults)); [print("  ",f) for f in faults[:20]]
