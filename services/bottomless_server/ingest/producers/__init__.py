"""What is remembered of producers and their numbers, and what follows from it. Pure."""
