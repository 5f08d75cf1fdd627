#!/bin/sh
# usage: run.sh script.py   (in the worktree att2)
cd "$(git rev-parse --show-toplevel)" && PYTHONPATH=tests nice .venv/bin/python tests/findings/manifest/$1 2>&1 | grep -v -E '^[0-9-]+ [0-9:]+ \[(info|debug|warning|critical|error)'
