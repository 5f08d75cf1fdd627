"""What pkill does, on machines without it: `pkill -9 -f PATTERN`, and nothing else that it can do."""

import os
import re
import sys

import psutil


def main() -> int:
    if len(sys.argv) != 4 or sys.argv[1:3] != ["-9", "-f"]:
        print("pkill: this one knows `-9 -f PATTERN` alone", file=sys.stderr)
        return 2
    pattern, killed = re.compile(sys.argv[3]), 0
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        # Its own line and that of the shell around it have the pattern, too.
        if pattern.search(line) and process.pid not in (os.getpid(), os.getppid()):
            process.kill()
            killed += 1
    return 0 if killed else 1


if __name__ == "__main__":
    sys.exit(main())
