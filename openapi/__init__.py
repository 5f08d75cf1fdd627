"""The contract of HTTP, and what is made of it by `./dev contract`.

*.yaml          the contract: a path of the interface is entered there, and nowhere else
bundle.py       the public part as one document, which servers tell at /openapi.json
endpoints.py    who answers each operation, who may ask, what is audited and counted
routing.py      the same for proxies: what stands in deploy/nginx.conf and in docs/
__main__.py     writes all of it
"""
