"""Many empty zstd / lz4 frames in a body of 16 MiB: what does decode_body cost?"""
import time,sys,zlib,gzip,resource
import pyarrow as pa
from bottomless_server.runtime.http.encodings import decode_body
MIB=1<<20
def frame(enc,data=b""):
    sink=pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink,enc) as o: o.write(data)
    return sink.getvalue().to_pybytes()
skippable=b"\x50\x2a\x4d\x18\x00\x00\x00\x00"
zempty=bytes.fromhex("28b52ffd2000010000")
size=int(sys.argv[1])*MIB if len(sys.argv)>1 else MIB
one=gzip.compress(b"",mtime=0)
cases=[("gzip empty","gzip",one),("gzip 1 byte","gzip",gzip.compress(b"x",1,mtime=0)),("zstd skippable","zstd",skippable),("zstd empty hand","zstd",zempty),("zstd 1 byte","zstd",bytes.fromhex("28b52ffd2001090000")+b"x"),("lz4 empty","lz4",frame("lz4")),("lz4 skippable","lz4",skippable),("lz4 minimal","lz4",bytes.fromhex("04224d18604082")+b"\0\0\0\0")]
for name,enc,f in cases:
    body=f*(size//len(f))
    t=time.perf_counter()
    try: r=len(decode_body(body,enc,64*MIB))
    except Exception as e: r=repr(e)[:80]
    print(f"{name}: frame {len(f)} B, {len(body)//len(f)} frames, {len(body)} B: {time.perf_counter()-t:.2f}s -> {r}; maxrss {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024} MiB",flush=True)
