"""Are heads that end with bare LF parsed? If so the count of CRLFCRLF does not see them."""
import socket,sys
port=int(sys.argv[1])
for name,eol,end in (("crlf","\r\n","\r\n\r\n"),("lf","\n","\n\n"),("mix","\r\n","\r\n\n"),("mix2","\n","\n\r\n"),("nohead","","")):
    s=socket.create_connection(("127.0.0.1",port)); s.settimeout(3)
    if name=="nohead": s.sendall(b"GET /livez\r\n\r\n")
    else: s.sendall(("GET /livez HTTP/1.1"+eol+"Host: localhost"+end).encode()*2)
    try: print(name, s.recv(4000)[:200])
    except Exception as e: print(name, repr(e))
    s.close()
