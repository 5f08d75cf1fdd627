"""Bodies of requests to queues and of their answers: every form that is accepted. Pure."""
