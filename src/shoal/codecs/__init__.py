"""How a tensor becomes bytes and back. See `docs/packages/codecs.md`."""
