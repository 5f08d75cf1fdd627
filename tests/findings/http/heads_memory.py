"""Pipelined heads: 100 may wait on a connection, each of up to 64 KiB and 100 headers. Is there a bound on them all?
The client does not even have a credential: it does not read its answers, so the pipeline stands still.
usage: port pid connections"""
import socket,sys,time
port,pid,n=map(int,sys.argv[1:4])
def rss(): return int([l for l in open(f"/proc/{pid}/status") if l.startswith("VmRSS")][0].split()[1])//1024
path=sys.argv[4].encode() if len(sys.argv)>4 else b"/v1/streams/hh/records?offset=first"
small=b"GET "+path+b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
pad=b"".join(b"X-%03d: %s\r\n"%(i,b"a"*640) for i in range(95))
big=b"GET "+path+b" HTTP/1.1\r\nHost: localhost\r\n"+pad+b"\r\n"
print("big head",len(big),"rss",rss(),"MiB")
socks=[]
t=time.time()
for k in range(n):
    s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,2048); s.connect(("127.0.0.1",port)); s.setblocking(False)
    socks.append(s)
def push(s,data,idle=1.0):
    """send until the server takes no more for a while"""
    view=memoryview(data); sent=0; last=time.time()
    while len(view) and time.time()-last<idle:
        try: m=s.send(view); view=view[m:]; sent+=m; last=time.time()
        except BlockingIOError: time.sleep(.005)
        except OSError as e: return sent,repr(e)
    return sent,""
total=0
for k,s in enumerate(socks):
    a,e=push(s,small*30000,.5)   # answers that nobody reads fill the buffers, until the pipeline stands
    if e: print(k,"ended",e); continue
    total+=a
print(f"phase 1: sent {total} B of small requests in {time.time()-t:.1f}s; rss {rss()} MiB")
