"""What is said about a store that cannot be opened."""

from __future__ import annotations

import pytest

from shoal.checkpoint import texts
from shoal.checkpoint.stores.remote_store import RemoteStore
from shoal.errors import UsageError


def test_a_url_is_named_without_its_password() -> None:
    with pytest.raises(UsageError) as caught:
        RemoteStore("nowhere://me:secret@host/folder")
    assert str(caught.value).startswith(texts.no_store("nowhere://host/folder", ""))
    assert "secret" not in str(caught.value)
