"""Bodies of requests to records: every form that is accepted. Pure."""
