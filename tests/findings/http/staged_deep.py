import sys,json,time,pyarrow as pa,urllib.request
from bottomless.formats.batch import encode_frame, FIELDS
from bottomless import Client
url=f"http://127.0.0.1:{sys.argv[1]}"; N=int(sys.argv[2])
c=Client(url); s=f"staged{int(time.time())}"; c.create_stream(s)
d=b'['*N+b']'*N
print([(n,str(getattr(f,'type',f))) for n,f in (FIELDS.items() if hasattr(FIELDS,'items') else [(f.name,f) for f in FIELDS])])
b=pa.RecordBatch.from_arrays([pa.array([d],pa.binary()),pa.array([2],pa.uint8())],schema=pa.schema([pa.field("value",pa.binary(),nullable=False),pa.field("content",pa.uint8(),nullable=False)]))
def post(p,body,h):
    r=urllib.request.Request(url+p,data=body,headers=h,method="POST")
    try:
        with urllib.request.urlopen(r,timeout=20) as a: return a.status,json.loads(a.read())
    except urllib.error.HTTPError as e: return e.code,json.loads(e.read())
st,m=post(f"/v1/streams/{s}/staged",encode_frame(b),{"Content-Type":"application/vnd.bottomless.batches"}); print("staged",st,{k:m.get(k) for k in ("staged_id","code","detail","errors")})
if st==201:
    st,m=post(f"/v1/streams/{s}/records",json.dumps({"staged":[m["staged_id"]]}).encode(),{"Content-Type":"application/vnd.bottomless.staged+json","Producer-Id":"n","Txn-Number":"1"}); print("commit",st,m.get("code"),m.get("first_offset"))
    try: c.read(s,"first")
    except Exception as e: print("read ->",type(e).__name__,e.code,e)
