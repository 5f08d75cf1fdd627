"""API keys: made, rotated, revoked, and found again after coordination was lost."""
