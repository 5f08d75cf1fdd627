"""What the services say to each other: encode and decode side by side, every name once. Pure."""
