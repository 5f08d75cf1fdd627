"""Three requests at once on one connection, the head of the third cut by where a segment ends: the server stops reading until the first is answered,
and counts its own pause as the client's time for a head.
usage: port stream wait_ms"""
import socket,sys,time
port,name,wait=int(sys.argv[1]),sys.argv[2],int(sys.argv[3])
H=b"Host: localhost\r\n\r\n"
def answers(split):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(wait/1000+10)
    one=b"GET /v1/streams/%b/records?offset=next&max_wait_ms=%d HTTP/1.1\r\n"%(name.encode(),wait)+H
    two=b"GET /livez HTTP/1.1\r\n"+H
    all=one+two+two
    cut=len(all) if not split else len(all)-12
    t=time.time(); s.sendall(one); time.sleep(.3); s.sendall(all[len(one):cut]); time.sleep(.2); s.sendall(all[cut:]); data=b""
    try:
        while data.count(b"HTTP/1.1 ")<3:
            d=s.recv(65536)
            if not d: break
            data+=d
    except OSError as e: data+=repr(e).encode()
    print(f"{'third head in two segments' if split else 'all in one segment':28} after {time.time()-t:.1f}s:",data.count(b"HTTP/1.1 200"),"answers of 3","" if data.count(b"HTTP/1.1 ")==3 else "CLOSED")
import threading
a=[threading.Thread(target=answers,args=(x,)) for x in (False,True)]; [t.start() for t in a]; [t.join() for t in a]
