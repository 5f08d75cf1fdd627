"""HTTP as all services speak it: bodies, queries, problems, the contract and its page."""
