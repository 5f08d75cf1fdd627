"""The program, with a fault point armed for its start: one over HTTP comes too late for what a start does.

`BOTTOMLESS_TEST_ARMED` names the point. It is forked like the program itself (support/nursery.py).
"""

import os

from bottomless.cli import main
from bottomless_server.runtime.base.fault_points import FaultAction, arm

if __name__ == "__main__":
    arm(os.environ["BOTTOMLESS_TEST_ARMED"], FaultAction.EXIT)
    main()
