"""Pure decisions about offsets of consumers."""
