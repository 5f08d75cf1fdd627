"""Pure decisions about what garbage is."""
