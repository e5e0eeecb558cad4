"""Injected faults (`--chaos`): reading the text, choosing when and whom faults strike, and causing them."""
