"""The optional C extension: `native` is the module, or None if it was not built, is not wanted or does not fit.

It fits if it has the memory layout, the codes and the functions that Python's code expects. An extension that was built
from other sources would read and write other places in memory than Python's code does.
"""

from __future__ import annotations

import warnings
from types import ModuleType

from shoal.environment import native_is_wanted
from shoal.transport.native_layout import differences


def _load() -> ModuleType | None:
    if not native_is_wanted():
        return None
    try:
        from shoal import _native  # noqa: PLC0415  it may not have been built
    except ImportError:
        return None
    return checked(_native)


def checked(module: ModuleType) -> ModuleType | None:
    """The module; None, with a warning, if it does not fit."""
    differing = differences(getattr(module, "LAYOUT", {}), dir(module))
    if not differing:
        return module
    some = "; ".join(differing[:3]) + ("; and more" if len(differing) > 3 else "")
    warnings.warn(
        f"Shoal's C extension {module.__file__} was built from other sources and is not used, so exchanges are slower: "
        f"{some}. Install Shoal again, which builds the extension anew",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


native = _load()
