"""Two ingest nodes whose internal listeners are TCP without a secret (ALLOW_UNAUTHENTICATED_INTERNAL=1): a write of a web page
of a listed origin, or of /docs of the server itself, to the node that does not own the stream."""
import sys,tempfile,time
sys.path[:0]=["./tests","./docs/examples","."]
from pathlib import Path
from contextlib import ExitStack
import httpx
from support.processes import TwoNodes, Process, running_nginx
from support.valkey import running_valkey
from support.ports import lasting_ports
import support.processes as sp
tmp=Path(tempfile.mkdtemp(dir="/tmp"))
ports=dict(zip(("ingest","ingest-2"),lasting_ports(2)))
class Tcp(TwoNodes):
    def _process(self,name,called,port):
        if name=="ingest":
            u=f"127.0.0.1:{ports['ingest']}"
            return Process([name],self._directory/f"{called}.log",{**self._common,"BOTTOMLESS_INGEST_INTERNAL_LISTEN":u,"BOTTOMLESS_INGEST_URL":"http://"+u},port)
        return super()._process(name,called,port)
secret=len(sys.argv)>1
S={"BOTTOMLESS_CORS_ORIGINS":"https://app.example.org"}
S|={"BOTTOMLESS_INTERNAL_SECRET":"0123456789abcdefABCDEF0123456789xyzw"} if secret else {"BOTTOMLESS_ALLOW_UNAUTHENTICATED_INTERNAL":"1"}
with ExitStack() as st:
    v=st.enter_context(running_valkey(tmp/"valkey"))
    h=Tcp(tmp,v.url,S)
    u=f"127.0.0.1:{ports['ingest-2']}"
    h.services["ingest-2"]=Process(["ingest"],tmp/"ingest-2.log",{**h._common,"BOTTOMLESS_INGEST_INTERNAL_LISTEN":u,"BOTTOMLESS_INGEST_URL":"http://"+u,"BOTTOMLESS_DATA_DIR":str(tmp/"data-2")},lasting_ports(1)[0])
    h.spawn()
    for p in h.services.values(): st.enter_context(p)
    m=httpx.Client(base_url=h["manifest"].url,timeout=30); print("put",m.put("/v1/streams/o",json={}).status_code)
    a=httpx.Client(base_url=h["ingest"].url,timeout=30); b=httpx.Client(base_url=h["ingest-2"].url,timeout=30)
    rec={"records":[{"value":"x"}]}
    print("owner       ",a.post("/v1/streams/o/records",json=rec).status_code)
    print("other, plain",b.post("/v1/streams/o/records",json=rec).status_code)
    for o in ("https://app.example.org",h["ingest-2"].url,h["ingest"].url):
        for n,c in (("owner",a),("other",b)):
            r=c.post("/v1/streams/o/records",json=rec,headers={"Origin":o}); print(n,"Origin",o,"asked at",c.base_url,r.status_code,r.json().get("code"),dict(r.headers).get("access-control-allow-origin"))
    if secret:
        for n in ("ingest","ingest-2"):
            for path in ("/metrics","/internal/v1/streams","/internal/v1/fault-points","/livez","/readyz?verbose=1","//metrics","/metrics/","/%6detrics","/livez/../metrics","/v1/streams/o/records"):
                for meth in ("GET","POST"):
                    r=httpx.request(meth,f"http://127.0.0.1:{ports[n]}"+path); 
                    if r.status_code!=401: print("without a secret",meth,path,r.status_code,r.text[:200])
            for auth in ("Bearer x","Basic "+S["BOTTOMLESS_INTERNAL_SECRET"],"bearer "+S["BOTTOMLESS_INTERNAL_SECRET"],"Bearer  "+S["BOTTOMLESS_INTERNAL_SECRET"]):
                r=httpx.get(f"http://127.0.0.1:{ports[n]}/metrics",headers={"Authorization":auth}); print(n,repr(auth[:9]),r.status_code)
        r=b.post("/v1/streams/o/records",json=rec,headers={"bottomless-forwarded-tenant":"evil","bottomless-forwarded-actor":"root","Authorization":"Bearer zzz"}); print("forged forwarding headers at the public port",r.status_code,r.text[:100])
        import subprocess; print("secret in logs:",subprocess.run(["grep","-rc",S["BOTTOMLESS_INTERNAL_SECRET"],*map(str,tmp.glob("*.log"))],capture_output=True,text=True).stdout)
