"""Long operations: begun by a request, gone on with by any process, asked for by their id."""
