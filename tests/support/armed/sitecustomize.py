"""Loaded before the program, where this directory is on its path: arms a fault point for its start.

`BOTTOMLESS_TEST_ARMED` names the point. One over HTTP comes too late for what a start does.
"""

import os

from bottomless_server.runtime.base.fault_points import FaultAction, arm

arm(os.environ["BOTTOMLESS_TEST_ARMED"], FaultAction.EXIT)
