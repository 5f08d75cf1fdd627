"""Pure decisions of the mutator: what to publish, what to remove, which root counts."""
