"""A job's ledger and the order of its entries on all servers. Pure."""
