"""From the body of a request to records: every form that is taken. Pure."""
