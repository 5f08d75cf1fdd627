"""One JSON record that came by Arrow, nested 1,023 deep, and nobody with the Python client reads past it."""
import sys,pyarrow as pa,time,urllib.request,json
from bottomless import Client
from bottomless.model.record import Content
N=int(sys.argv[2]); print('nested',N)
url=f"http://127.0.0.1:{sys.argv[1]}"
c=Client(url); s=f"poison{int(time.time())}"; c.create_stream(s)
c.append(s,[{"value":"before"}]); d=b'['*N+b']'*N
a=c.append_arrow(s,pa.table({"value":pa.array([d],pa.binary()),"content":pa.array([Content.JSON],pa.uint8())})); print("append by Arrow: stored at",a.first_offset)
try: c.append_body(s,b'{"records":[{"json":'+d+b'}]}',"application/json")
except Exception as e: print("the same by JSON:",e.code,str(e)[:70])
c.append(s,[{"value":"after"}])
r=urllib.request.urlopen(f"{url}/v1/streams/{s}/records?offset=first"); print("page of the server:",r.status,len(r.read()),"bytes")
for what,call in (("read",lambda: c.read(s,"first")),("read 1",lambda: c.read(s,1,limit=1)),("read_arrow",lambda: c.read_arrow(s,"first").table.num_rows)):
    try: print(what,call() if what=="read_arrow" else len(call().records))
    except Exception as e: print(what,"->",type(e).__name__,e.code,"retryable",e.retryable,e)
for k in range(3):
    try:
        with c.consumer(s,"job") as con:
            for _ in range(3):
                b=con.poll(2)
                if b is None: break
                print("  consumer was given",[x.offset for x in b.records]); con.commit()
    except Exception as e: print("consumer, start",k+1,"->",type(e).__name__,getattr(e,"code",""),e)
