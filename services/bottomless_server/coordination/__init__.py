"""Coordination: small shared values that change by compare-and-swap, on Redis or Valkey."""
