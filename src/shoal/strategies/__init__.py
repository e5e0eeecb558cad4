"""How replicas agree on the model. See `docs/packages/strategies.md`."""
