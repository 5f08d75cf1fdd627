"""Consumers (records and tables) that are killed at any moment, with auto commit, manual commit of part, and two at once under one name.
What every process writes to its own 'processed' file before it asks for the next batch must cover the stream without a hole."""
import sys,os,subprocess,time,random,json,signal,tempfile
port=sys.argv[1]; mode=sys.argv[2] if len(sys.argv)>2 else None
url=f"http://127.0.0.1:{port}"
from bottomless import Client
CHILD=r'''
import sys,os,time,random
from bottomless import Client
url,stream,name,kind,out,commit,seed=sys.argv[1:8]
rnd=random.Random(int(seed)); f=open(out,"a")
c=Client(url)
with c.consumer(stream,name,commit_seconds=float(commit) if commit!="manual" else 1,auto_commit=commit!="manual",max_bytes=rnd.choice([1000,20000,200000])) as con:
    batches=con.tables(max_bytes=rnd.choice([1000,20000,200000])) if kind=="tables" else con
    k=0
    try:
        for b in batches:
            offs=b.table["offset"].to_pylist() if kind=="tables" else [r["offset"] for r in b.records]
            time.sleep(rnd.random()*.03)
            f.write("%d %d %s\n"%(offs[0],offs[-1]+1,os.getpid())); f.flush(); os.fsync(f.fileno())
            k+=1
            if commit=="manual" and k%3==0: con.commit()
    except Exception as e:
        f.write("# %r\n"%e); f.flush(); raise
'''
d=tempfile.mkdtemp(dir="/tmp"); open(d+"/child.py","w").write(CHILD)
rnd=random.Random(5)
with Client(url) as c:
    for kind,commit,at_once in (("records","1",1),("tables","0",1),("tables","0.3",1),("tables","manual",1),("records","0.2",2),("tables","0.2",2)):
        s=f"con{int(time.time()*1000)}"; c.create_stream(s,{"fragment":{"max_age_ms":1000}})
        n=0
        out=d+f"/{s}.out"; open(out,"w")
        end=time.time()+9; procs=[]
        def start(): procs.append(subprocess.Popen([sys.executable,d+"/child.py",url,s,"job",kind,out,commit,str(rnd.randint(0,9999))],stderr=subprocess.DEVNULL))
        while time.time()<end:
            c.append(s,[{"value":"v%d"%(n+i)+"x"*rnd.choice([1,500])} for i in range(rnd.randint(1,60))]); n=c.read(s,"next").next_offset
            procs[:]=[p for p in procs if p.poll() is None]
            while len(procs)<at_once: start()
            if rnd.random()<.06: p=rnd.choice(procs); p.send_signal(rnd.choice([signal.SIGKILL,signal.SIGTERM,signal.SIGINT]))
        deadline=time.time()+25
        def covered():
            pos=0; ranges=sorted(tuple(map(int,l.split()[:2])) for l in open(out) if l[0]!="#")
            hole=None
            for a,b in ranges:
                if a>pos: hole=(pos,a); break
                pos=max(pos,b)
            return pos,hole
        while time.time()<deadline:
            procs[:]=[p for p in procs if p.poll() is None]
            while len(procs)<at_once: start()
            pos,hole=covered()
            if pos>=n: break
            time.sleep(.5)
        [p.kill() for p in procs]; [p.wait() for p in procs]
        errs={l.strip()[:90] for l in open(out) if l[0]=="#"}
        # what is committed may never be beyond what was processed
        import urllib.request
        st=json.load(urllib.request.urlopen(f"{url}/v1/streams/{s}/consumers/job/offset"))
        print(kind,"commit",commit,"at once",at_once,"| records",n,"covered to",pos,"hole",hole,"| committed",st.get("next_offset"),"| lines",sum(1 for _ in open(out)),errs,flush=True)
