"""A simulated cluster under virtual time, and what it predicts. See `docs/packages/plan.md`."""
