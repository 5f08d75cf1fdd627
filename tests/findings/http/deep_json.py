import sys,pyarrow as pa,time,subprocess
from bottomless import Client
from bottomless.model.record import Content
url=f"http://127.0.0.1:{sys.argv[1]}"
c=Client(url); s=f"deep{int(time.time())}"; c.create_stream(s)
for n in (254,255,500,1000,1023):
    d=b'['*n+b']'*n
    for how in ("arrow","json"):
        try:
            if how=="arrow": a=c.append_arrow(s,pa.table({"value":pa.array([d],pa.binary()),"content":pa.array([Content.JSON],pa.uint8())}))
            else: a=c.append_body(s,b'{"records":[{"json":'+d+b'}]}',"application/json")
            r=c.read(s,a.first_offset,limit=1).records[0]
            try: v=len(r.value)
            except Exception as e: v=f"{type(e).__name__}: {e}"
            print(n,how,"stored at",a.first_offset,"; record.value ->",v)
        except Exception as e: print(n,how,type(e).__name__,getattr(e,"code",""),str(e)[:90])
print("a consumer that uses .value:")
try:
    with c.consumer(s,"job") as con:
        for b in con:
            for r in b.records: r.value
            if b.next_offset>=c.read(s,"next").next_offset: break
except Exception as e: print("  ",type(e).__name__,e)
for args in (["read",s,"--offset","first","--limit","20"],["read",s,"--offset","first","-o","ndjson"],["read",s,"--offset","first","-o","json"],["record",s,"1"]):
    p=subprocess.run([sys.executable.replace("python","bottomless"),"--url",url,*args],capture_output=True,text=True); print(args[0],args[3:],p.returncode,(p.stdout[-100:],p.stderr[-200:]))
