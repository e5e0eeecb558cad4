"""The all-reduce strategy: gradients taken from backward, averaged over all workers in groups, and handed back."""
