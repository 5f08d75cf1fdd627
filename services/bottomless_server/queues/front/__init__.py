"""What the queues service answers: to the public, and to other nodes that pass requests on."""
