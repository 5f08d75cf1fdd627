import socket,sys,gzip
port=int(sys.argv[1])
def ask(raw,t=2):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(t); data=b""
    try:
        s.sendall(raw)
        while d:=s.recv(65536): data+=d
    except Exception: pass
    s.close(); return data
H=b"Host: localhost\r\n"
ask(b"PUT /v1/streams/teg HTTP/1.1\r\n"+H+b"Content-Length: 0\r\nConnection: close\r\n\r\n")
z=gzip.compress(b"hello, plain text")
d=ask(b"POST /v1/streams/teg/records HTTP/1.1\r\n"+H+b"Content-Type: application/octet-stream\r\nTransfer-Encoding: gzip, chunked\r\nConnection: close\r\n\r\n%x\r\n"%len(z)+z+b"\r\n0\r\n\r\n")
print("append with Transfer-Encoding: gzip, chunked:",d.split(b"\r\n")[0], d[-150:])
print("what is stored:",ask(b"GET /v1/streams/teg/records?offset=last HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n").split(b"\r\n\r\n",1)[1][-260:])
d=ask(b"POST /v1/streams/teg/records HTTP/1.0\r\n"+H+b"Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n2\r\nab\r\n0\r\n\r\nGET /livez HTTP/1.1\r\n"+H+b"\r\n")
print("1.0 keep-alive with chunked, then a second request:",[l for l in d.split(b"\r\n") if l.startswith(b"HTTP")])
d=ask(b"GET /v1/streams/teg/records?offset=first&follow=true&limit=1 HTTP/1.0\r\n\r\n")
print("follow for HTTP/1.0:",d)
