"""Bounds that are counts under 100 threads at once: streams of a tenant, keys, consumers, producers (5 each)."""
import sys,json,threading,urllib.request,collections
port=int(sys.argv[1]); root="sk_root_"+open(sys.argv[2]).read().strip()
def call(m,p,body=None,headers={}):
    r=urllib.request.Request(f"http://127.0.0.1:{port}{p}",method=m,data=None if body is None else (body if isinstance(body,bytes) else json.dumps(body).encode()),headers={"Authorization":"Bearer "+root,"Content-Type":"application/json",**headers})
    try:
        with urllib.request.urlopen(r,timeout=60) as a: return a.status,json.loads(a.read() or b"{}")
    except urllib.error.HTTPError as e:
        t=e.read()
        try: return e.code,json.loads(t)
        except Exception: return e.code,t
    except Exception as e: return -1,repr(e)
def at_once(n,f):
    out=[None]*n; bar=threading.Barrier(n)
    def go(i): bar.wait(); out[i]=f(i)
    ts=[threading.Thread(target=go,args=(i,)) for i in range(n)]; [t.start() for t in ts]; [t.join() for t in ts]
    return collections.Counter((s,b.get("code") if isinstance(b,dict) else b) for s,b in out)
N=100
print("streams before",len(call("GET","/v1/streams")[1]["items"]))
print("create streams",at_once(N,lambda i:call("PUT",f"/v1/streams/c{i}",{})))
s=[x["name"] for x in call("GET","/v1/streams?limit=200")[1]["items"]]; print("streams now",len(s),s)
print("delete+create",at_once(60,lambda i:call("DELETE",f"/v1/streams/{s[i%len(s)]}") if i<20 else call("PUT",f"/v1/streams/d{i}",{})))
import time; time.sleep(3)
print("create again",at_once(N,lambda i:call("PUT",f"/v1/streams/e{i}",{})))
s=[x["name"] for x in call("GET","/v1/streams?limit=200")[1]["items"]]; print("streams now",len(s),s)
print("keys",at_once(N,lambda i:call("POST","/v1/keys",{"label":f"k{i}","scopes":["read"]})))
k=call("GET","/v1/keys")[1]; print("keys now",len(k["items"]))
st=s[0]
print("append",call("POST",f"/v1/streams/{st}/records",{"records":[{"value":"a"}]*10})[0])
print("consumers",at_once(N,lambda i:call("PUT",f"/v1/streams/{st}/consumers/con{i}/offset",{"next_offset":1})))
print("consumers now",len(call("GET",f"/v1/streams/{st}/consumers")[1].get("items",[])))
print("producers",at_once(N,lambda i:call("POST",f"/v1/streams/{st}/records",{"records":[{"value":"a"}]},{"Producer-Id":f"p{i}","Producer-Epoch":"1","Producer-Seq":"0"})))
p=call("GET",f"/v1/streams/{st}/producers"); print("producers now",p[0],len(p[1].get("items",[])) if isinstance(p[1],dict) else p)
print("leases",at_once(N,lambda i:call("POST",f"/v1/streams/{st}/leases",{"first_offset":0,"ttl_seconds":60})))
l=call("GET",f"/v1/streams/{st}/leases"); print("leases now",l[0],len(l[1].get("items",[])))
