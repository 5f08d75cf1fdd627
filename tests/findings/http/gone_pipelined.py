"""A client asks for a long poll, pipelines one more request, and goes away. Does the server notice? (places of waiters, log)
usage: port stream count log"""
import socket,sys,time,http.client,json
port,name,count,log=int(sys.argv[1]),sys.argv[2],int(sys.argv[3]),sys.argv[4]
H=b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
def go(pipelined):
    for _ in range(count):
        s=socket.create_connection(("127.0.0.1",port)); s.sendall(b"GET /v1/streams/%b/records?offset=next&max_wait_ms=12000"%name.encode()+H)
        time.sleep(.03)
        if pipelined: s.sendall(b"GET /livez"+H)
        time.sleep(.03); s.close()
def probe():
    c=http.client.HTTPConnection("127.0.0.1",port,timeout=30); c.request("GET",f"/v1/streams/{name}/records?offset=next&max_wait_ms=1"); r=c.getresponse(); b=json.loads(r.read()); return r.status,b.get("code"),b.get("detail"),b.get("limit")
for p in (False,True):
    b0=open(log).read(); go(p); time.sleep(1.5)
    t=time.time(); print("with a pipelined request" if p else "alone","| all",count,"clients are gone; another long poll now:",probe())
    time.sleep(14); new=open(log).read()[len(b0):]; print("   log meanwhile:",new.count("request met a bug"),"x 'request met a bug',",new.count("Traceback"),"tracebacks,",len(new),"bytes; a long poll then:",probe())
