"""What a round of compaction decides, without a clock, a loop or a socket."""
