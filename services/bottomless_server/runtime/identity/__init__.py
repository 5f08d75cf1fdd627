"""Identity: who sends a request, for which tenant, and what they may do."""
