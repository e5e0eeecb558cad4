"""A job's ledger, and the one order of its entries on all servers. Pure."""
