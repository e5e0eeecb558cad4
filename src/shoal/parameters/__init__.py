"""A parameter server: tables cut into blocks on many servers, updates in one order, leases of samples."""
