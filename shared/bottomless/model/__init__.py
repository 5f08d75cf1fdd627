"""Values: the things that Bottomless is about. Pure: no I/O, no clock, no randomness."""
