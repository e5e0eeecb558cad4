"""Every collective, against gloo."""
