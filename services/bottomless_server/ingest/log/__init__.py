"""The log of a stream on the disk: segments, their index, and how a log is read again after a crash."""
