"""Changes of queues, as rounds do them: receive, acknowledge, give back, extend, and what is due by itself."""
