"""A body in chunks that is full of CRLFCRLF is fed to the parser in pieces of 1 KiB, and what is left is
copied and searched again for each piece. What does the event loop spend on it?"""
import sys,time,socket,threading
port=int(sys.argv[1]); size=int(sys.argv[2])
def get():
    t=time.perf_counter(); s=socket.create_connection(("127.0.0.1",port)); s.settimeout(30)
    s.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    while s.recv(4096): pass
    return time.perf_counter()-t
def cpu(pid): 
    f=open(f"/proc/{pid}/stat").read().rsplit(")",1)[1].split(); return (int(f[11])+int(f[12]))/100
pid=int(sys.argv[3])
def post(fill,waiting=0):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(60)
    pre=b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"*waiting
    body=fill*(size//len(fill)); 
    c0=cpu(pid); t=time.perf_counter()
    try:
        s.sendall(pre+b"POST /v1/streams/zz/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        s.sendall(b"%x\r\n"%len(body)); s.sendall(body); s.sendall(b"\r\n0\r\n\r\n")
    except OSError as e: print("send",e)
    data=b""
    try:
        while d:=s.recv(65536): data+=d
    except OSError as e: print("recv",e)
    print(fill[:4],f"wall {time.perf_counter()-t:.2f}s cpu {cpu(pid)-c0:.2f}s",data.split(b"\r\n")[0])
stop=False; worst=[0]
def watch():
    while not stop: worst[0]=max(worst[0],get()); time.sleep(.01)
import urllib.request
socket_put=socket.create_connection(("127.0.0.1",port)); socket_put.sendall(b"PUT /v1/streams/zz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"); socket_put.recv(999)
th=threading.Thread(target=watch); th.start()
for fill in (b"abcd",b"\r\n\r\n",b"abcd",b"\r\n\r\n"):
    worst[0]=0; post(fill); print("   worst latency of GET /livez meanwhile: %.3fs"%worst[0])
stop=True; th.join()
