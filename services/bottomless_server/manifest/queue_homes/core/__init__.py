"""Pure decisions about homes of queues."""
