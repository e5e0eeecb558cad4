"""One job on one server: its state, its workers' requests, its moving blocks."""
