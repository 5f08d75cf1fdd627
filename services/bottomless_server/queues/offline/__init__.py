"""Tools for a store of queues whose service is stopped: nobody else uses its directory."""
