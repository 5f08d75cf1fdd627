"""Helpers of the attack scripts. Run: cd "$(git rev-parse --show-toplevel)" && PYTHONPATH=tests .venv/bin/python tests/findings/owners/X.py"""
import asyncio, errno, os, sys, tempfile
from pathlib import Path
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
from bottomless_server.ingest.staged import batches as staged_module
staged_module.SWEEP_SECONDS = 1e6
from unit.ingest import test_staged as T
from unit.ingest.house import *  # noqa
from unit.ingest.test_staged import stage, commit, staged_of, sweep, files, cut_off, LARGE, SETTINGS, KEEP_MS
from bottomless.model.limits import KIB

def tmp() -> Path:
    return Path(tempfile.mkdtemp(prefix="att1-", dir="/tmp"))

def show(what, answer):
    try:
        body = answer.json()
    except Exception:
        body = answer.text
    if isinstance(body, dict):
        body = {k: v for k, v in body.items() if k in ("code","outcome","first_offset","next_offset","count","duplicates","stored_parts","expected_seq","detail","last_seq","mode","epoch")}
    print(f"{what} -> {answer.status_code} {body} {'replayed' if answer.headers.get('idempotent-replayed') else ''}", flush=True)
    return answer

async def finish(house):
    await house.service.appenders.finish_commits()
