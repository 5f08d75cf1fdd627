"""What a round of compaction decides: its objects, its runs, what is set aside. Pure."""
