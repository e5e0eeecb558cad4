"""The optional C extension, where it was built and is wanted: `native` is the module, or None."""

from __future__ import annotations

from types import ModuleType

from shoal.environment import native_is_wanted


def _load() -> ModuleType | None:
    if not native_is_wanted():
        return None
    try:
        from shoal import _native  # noqa: PLC0415  it may not have been built
    except ImportError:
        return None
    module: ModuleType = _native
    return module


native = _load()
