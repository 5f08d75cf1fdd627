"""Odd requests on raw sockets: smuggling, absolute-form, CONNECT, two lengths, upgrade with bodies, HEAD with bodies, HTTP/1.0."""
import socket,sys,re
port=int(sys.argv[1])
def ask(raw,t=2,pieces=None):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(t); data=b""
    try:
        for p in (pieces or [raw]): s.sendall(p)
        while d:=s.recv(65536): data+=d
    except Exception as e: pass
    s.close(); return data
def show(name,d):
    st=re.findall(rb"HTTP/1\.[01] (\d+)[^\r]*\r\n.*?(?=HTTP/1\.|\Z)",d,re.S)
    print(f"{name:46} {[x.decode() for x in st]} {d.rsplit(bytes([13,10,13,10]),1)[-1][:90]!r}")
H=b"Host: localhost\r\n"
J=b"Content-Type: application/json\r\n"
rec=b'{"records":[{"value":"smug"}]}'
ask(b"PUT /v1/streams/raw HTTP/1.1\r\n"+H+b"Content-Length: 0\r\nConnection: close\r\n\r\n")
nxt=b"GET /livez HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n"
P=b"POST /v1/streams/raw/records HTTP/1.1\r\n"+H+J
cases={
"CL twice same":P+b"Content-Length: 30\r\nContent-Length: 30\r\n\r\n"+rec+nxt,
"CL twice differ":P+b"Content-Length: 30\r\nContent-Length: 5\r\n\r\n"+rec+nxt,
"CL list":P+b"Content-Length: 30, 30\r\n\r\n"+rec+nxt,
"CL +":P+b"Content-Length: +30\r\n\r\n"+rec+nxt,
"CL 0x1e":P+b"Content-Length: 0x1e\r\n\r\n"+rec+nxt,
"CL space inside":P+b"Content-Length: 3 0\r\n\r\n"+rec+nxt,
"CL space before colon":P+b"Content-Length : 30\r\n\r\n"+rec+nxt,
"CL huge":P+b"Content-Length: 99999999999999999999999\r\n\r\n"+rec+nxt,
"CL 2^64-1":P+b"Content-Length: 18446744073709551615\r\n\r\n"+rec+nxt,
"CL empty":P+b"Content-Length: \r\n\r\n"+rec+nxt,
"TE+CL":P+b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"CL+TE":P+b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE gzip, chunked":P+b"Transfer-Encoding: gzip, chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE chunked, identity":P+b"Transfer-Encoding: chunked, identity\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE xchunked":P+b"Transfer-Encoding: xchunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE twice":P+b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE CHUNKED":P+b"Transfer-Encoding: CHUNKED\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"TE obs-fold":P+b"Transfer-Encoding:\r\n chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"chunk ext":P+b"Transfer-Encoding: chunked\r\n\r\n1e;a=\"b\"\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"chunk size LF":P+b"Transfer-Encoding: chunked\r\n\r\n1e\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"chunk size huge":P+b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"trailer host/cl":P+b"Transfer-Encoding: chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\nContent-Length: 9\r\nHost: evil.com\r\nOrigin: http://x\r\n\r\n"+nxt,
"TE in 1.0":b"POST /v1/streams/raw/records HTTP/1.0\r\n"+H+J+b"Transfer-Encoding: chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"GET with body then next":b"GET /livez HTTP/1.1\r\n"+H+b"Content-Length: 4\r\n\r\nabcd"+nxt,
"GET with body not sent + next":b"GET /livez HTTP/1.1\r\n"+H+b"Content-Length: %d\r\n\r\n"%len(nxt)+nxt+nxt,
"HEAD body":b"HEAD /livez HTTP/1.1\r\n"+H+b"Content-Length: 4\r\n\r\nabcd"+nxt,
"Upgrade h2c + CL":P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 30\r\n\r\n"+rec+nxt,
"Upgrade h2c + TE":P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"Upgrade + TE+CL":P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1e\r\n"+rec+b"\r\n0\r\n\r\n"+nxt,
"Upgrade + two CL":P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 30\r\nContent-Length: 3\r\n\r\n"+rec+nxt,
"Upgrade no body":b"GET /livez HTTP/1.1\r\n"+H+b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"+nxt,
"Upgrade twice":b"GET /livez HTTP/1.1\r\n"+H+b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"+P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 30\r\n\r\n"+rec+nxt,
"Upgrade, CL 0":P+b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"+nxt,
"CONNECT":b"CONNECT localhost:80 HTTP/1.1\r\n"+H+b"\r\n"+nxt,
"CONNECT + CL":b"CONNECT localhost:80 HTTP/1.1\r\n"+H+b"Content-Length: 4\r\n\r\nabcd"+nxt,
"PRI":b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
"absolute evil, host localhost":b"GET http://evil.com/livez HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"absolute localhost, host evil":b"GET http://localhost/livez HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n",
"absolute, no path":b"GET http://localhost HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"absolute, ? only":b"GET http://localhost?x HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"absolute weird scheme":b"GET gopher://u:p@h:99999/livez HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"asterisk":b"OPTIONS * HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"path //":b"GET //livez HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"path %00":b"GET /v1/streams/a%00b HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"path raw utf8":b"GET /v1/streams/\xc3\xa4 HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"path %ff":b"GET /v1/streams/%ff/records?offset=first HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"path %zz":b"GET /v1/streams/%zz HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"query raw bytes":b"GET /v1/streams/raw/records?offset=\xff\xfe HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"fragment in target":b"GET /livez#x HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n",
"two hosts":b"GET /livez HTTP/1.1\r\n"+H+b"Host: evil.com\r\nConnection: close\r\n\r\n",
"no host":b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n",
"no host 1.0":b"GET /livez HTTP/1.0\r\n\r\n",
"1.0 keepalive":b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"+nxt,
"0.9 version":b"GET /livez HTTP/0.9\r\n\r\n"+nxt,
"1.2 version":b"GET /livez HTTP/1.2\r\n\r\n"+nxt,
"2.0 version":b"GET /livez HTTP/2.0\r\n"+H+b"\r\n"+nxt,
"method lower":b"get /livez HTTP/1.1\r\n"+H+b"\r\n",
"method odd post no origin check":b"QUERY /v1/streams/raw HTTP/1.1\r\n"+H+b"Origin: http://evil\r\nConnection: close\r\n\r\n",
"null origin delete":b"DELETE /v1/streams/raw HTTP/1.1\r\n"+H+b"Origin: null\r\nConnection: close\r\n\r\n",
"empty origin delete":b"DELETE /v1/streams/raw HTTP/1.1\r\n"+H+b"Origin: \r\nConnection: close\r\n\r\n",
"two origins":b"DELETE /v1/streams/raw HTTP/1.1\r\n"+H+b"Origin: http://localhost\r\nOrigin: http://localhost\r\nConnection: close\r\n\r\n",
"https origin same host":b"PUT /v1/streams/raw HTTP/1.1\r\n"+H+b"Origin: https://localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
"origin other port":b"PUT /v1/streams/raw HTTP/1.1\r\nHost: localhost:18731\r\nOrigin: http://localhost:3000\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
"X-Forwarded-Host":b"PUT /v1/streams/raw HTTP/1.1\r\nHost: evil.com\r\nX-Forwarded-Host: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
"method override":b"GET /v1/streams/raw HTTP/1.1\r\n"+H+b"X-HTTP-Method-Override: DELETE\r\nConnection: close\r\n\r\n",
"HEAD follow":b"HEAD /v1/streams/raw/records?offset=first&follow=true HTTP/1.1\r\n"+H+b"\r\n"+nxt,
"HEAD page":b"HEAD /v1/streams/raw/records?offset=first HTTP/1.1\r\n"+H+b"\r\n"+nxt,
"HEAD /":b"HEAD / HTTP/1.1\r\n"+H+b"\r\n"+nxt,
"HEAD /docs":b"HEAD /docs HTTP/1.1\r\n"+H+b"\r\n"+nxt,
"1.0 follow":b"GET /v1/streams/raw/records?offset=first&follow=true&limit=1 HTTP/1.0\r\n\r\n",
"Expect":P+b"Expect: 100-continue\r\nContent-Length: 30\r\n\r\n"+rec+nxt,
"Expect odd":P+b"Expect: 200-maybe\r\nContent-Length: 30\r\n\r\n"+rec+nxt,
"header name space":b"GET /livez HTTP/1.1\r\n"+H+b"X y: 1\r\n\r\n",
"header nul":b"GET /livez HTTP/1.1\r\n"+H+b"X: a\x00b\r\n\r\n",
"header CR":b"GET /livez HTTP/1.1\r\n"+H+b"X: a\rb\r\n\r\n",
"header no colon":b"GET /livez HTTP/1.1\r\n"+H+b"Xyz\r\n\r\n",
"leading CRLF":b"\r\n\r\n\r\n"+nxt,
"garbage after close":b"GET /livez HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n"+b"\x00\xff"*100,
"next after close":nxt+nxt,
"traceparent inject":b"GET /livez HTTP/1.1\r\n"+H+b"traceparent: <script>\r\nConnection: close\r\n\r\n",
}
for k,v in cases.items(): show(k,ask(v))
n=len(ask(b"GET /v1/streams/raw/records?offset=first HTTP/1.1\r\n"+H+b"Connection: close\r\n\r\n").split(b"smug"))-1
print("records stored:",n)
