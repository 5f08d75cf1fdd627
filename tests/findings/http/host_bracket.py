"""Odd Hosts, with identity on and off: no answer may be a bug's."""
import socket,sys
def ask(port,raw):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(5); s.sendall(raw); data=b""
    try:
        while True:
            d=s.recv(65536)
            if not d: break
            data+=d
    except Exception as e: pass
    s.close(); return data
def brief(d):
    h,_,b=d.partition(b"\r\n\r\n"); ct=[l for l in h.split(b"\r\n") if l.lower().startswith(b"content-type")]
    return h.split(b"\r\n")[0],ct,b[:160]
HOSTS=["[zz]","[::1%25a%b]","[1.2.3.4]","[::1%]","[%]","[v1.x]","[::1]","[~]","[.]",":80","","a:99999999","%","127.0.0.1.evil.com","0x7f.1","2130706433","0177.0.0.1","127.1","evil.com","evil.com.","EVIL.localhost","localhost.","localhost:8080:80","user@localhost","localhost/","127.0.0.1.","[::ffff:7f00:1]:1","..","a..","evil%2ecom","1.2.3.4.5","1.2.3.256","0x7f.0x1.evil","1e1.1"]
if __name__=="__main__":
    port=int(sys.argv[1]); auth=b"" if len(sys.argv)<3 else b"Authorization: Bearer sk_root_"+open(sys.argv[2],"rb").read().strip()+b"\r\n"
    ask(port,b"PUT /v1/streams/hh HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+auth+b"Content-Length: 0\r\n\r\n")
    for h in HOSTS:
        for what in (b"GET /v1/streams/hh/records?offset=first",b"GET /v1/streams/nope/records?offset=first",b"POST /v1/streams/hh/records",b"GET /"):
            d=ask(port,what+b" HTTP/1.1\r\nHost: "+h.encode()+b"\r\nConnection: close\r\n"+auth+(b"Content-Length: 0\r\n" if what[:4]==b"POST" else b"")+b"\r\n")
            st,ct,b=brief(d)
            if b" 5" in st[8:11] or b"problem" not in b"".join(ct) and b"200" not in st or not st: print(h,what,st,ct,b)
            elif what==b"GET /": print(h,st,b[:60] if b"200" not in st else "")
