"""The parameter-server strategy: gradients on their way to servers, values on their way back, leases of samples."""
