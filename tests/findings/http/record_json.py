"""JSON records that came by Arrow with odd JSON: does a reader of any form get what was stored, or an error that says so?"""
import sys,pyarrow as pa,orjson
from bottomless import Client
from bottomless.model.record import Content
url=f"http://127.0.0.1:{sys.argv[1]}"
import time
c=Client(url); s=f"rj{int(time.time())}"; c.create_stream(s)
docs=[b'123456789012345678901234567890',b'18446744073709551616',b'-9223372036854775809',b'1e400',b'{"a":1,"a":2}',b'"\\ud800"',b'1.10',b'0.1000000000000000055511151231257827',b'1E2',b'-0',b'"\\u0000"',b' [1 , 2] ',b'9007199254740993.0',b'NaN',b'['*300+b']'*300,b'"\xed\xa0\x80"',b'\xef\xbb\xbf1']
print([x for x in Content])
for d in docs:
    t=pa.table({"value":pa.array([d],pa.binary()),"content":pa.array([Content.JSON],pa.uint8())})
    try: a=c.append_arrow(s,t); off=a.first_offset
    except Exception as e: print(d[:40],"refused:",getattr(e,'code',''),str(e)[:80]); continue
    try:
        r=c.read(s,off,limit=1).records[0]; v=r.value; b=c.read(s,off,limit=1,value_encoding="text").records[0]; bb=c.read(s,off,limit=1,value_encoding="base64").records[0]
        print(d[:40],"-> value",v[:40],"json()",str(r.json())[:40],"| text",b.value[:40],"| base64", bb.value[:40], "" if v.strip()==d.strip() else "   <-- differs")
    except Exception as e: print(d[:40],"read:",type(e).__name__,str(e)[:100])
