"""Long operations: begun by a request, continued by any process, asked for by their id."""
