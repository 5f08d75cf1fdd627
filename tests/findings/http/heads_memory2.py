"""Pipelined heads: 100 may wait on a connection, each of up to 64 KiB. Is there a bound on all of them together?
First a long poll (20 s), then 100 requests with heads of 60 KiB, on n connections.
usage: port pid connections stream"""
import socket,sys,time
port,pid,n=map(int,sys.argv[1:4]); name=sys.argv[4].encode()
def rss(): return int([l for l in open(f"/proc/{pid}/status") if l.startswith("VmRSS")][0].split()[1])//1024
pad=b"".join(b"X-%03d: %s\r\n"%(i,b"a"*640) for i in range(95))
big=b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"+pad+b"\r\n"
print("head of",len(big),"B; rss",rss(),"MiB",flush=True)
socks=[]
for k in range(n):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(0.3)
    s.sendall(b"GET /v1/streams/"+name+b"/records?offset=next&max_wait_ms=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"); socks.append(s)
sent=0
for k,s in enumerate(socks):
    try: s.sendall(big*110); sent+=110*len(big)
    except OSError as e: pass
    if k%10==9: print(k+1,"connections, sent",sent>>20,"MiB, rss",rss(),"MiB",flush=True)
