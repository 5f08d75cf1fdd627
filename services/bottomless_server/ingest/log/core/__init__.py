"""The parts of the log that do no I/O."""
