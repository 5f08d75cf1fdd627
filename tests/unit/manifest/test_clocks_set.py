"""Wall clocks that are set while a manifest process runs, or were wrong when it started.

Why no earlier check saw these faults: all tests, the model and the simulation gave a process one
clock, so that the time of day and the time that passed were the same thing; the clocks that
scenarios A26 and M28 set were looked at through ingest alone, which has its own guard.
"""
