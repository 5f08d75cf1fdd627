"""Calls from one service to another, and the secret that they share."""
