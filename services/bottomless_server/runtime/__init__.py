"""The chassis that all services stand on: HTTP, peers, settings, telemetry, life and death."""
