"""Pure decisions about API keys."""
