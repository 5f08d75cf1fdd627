"""Values: what the parts of Bottomless talk about. Pure: no I/O, no clock, no randomness."""
