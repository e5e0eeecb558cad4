"""Which exception a traceback ends with, and where in the script it was raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.watch.wording import raised_at

HEAD = "the script failed on worker 1 in step 7:\nTraceback (most recent call last):\n"
OWN = '  File "/home/me/train.py", line 12, in train\n    loss = broken(model(x))\n'
TORCH = "/x/lib/python3.11/site-packages/torch/nn/functional.py"
EARLIER = HEAD + OWN.replace("12", "3") + "KeyError: 1\n\nDuring handling:\n\n"
LIBRARY = f'  File "{TORCH}", line 300, in linear\n    return f(x)\n'


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        (HEAD + OWN + "ValueError: no\nmore", "ValueError at /home/me/train.py:12"),
        (HEAD + OWN + LIBRARY + "RuntimeError: mat1 and mat2", "RuntimeError at /home/me/train.py:12"),
        (HEAD + LIBRARY + "my.package.Broken", f"my.package.Broken at {TORCH}:300"),
        (EARLIER + HEAD + OWN + "ValueError: no", "ValueError at /home/me/train.py:12"),
        ("nothing of the kind", "nothing of the kind"),
    ],
)
def test_the_script_s_own_line_is_named(text: str, raised: str) -> None:
    assert raised_at(text) == raised


def test_a_file_in_the_current_folder_is_named_as_people_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert raised_at(HEAD + OWN.replace("/home/me", str(tmp_path)) + "ValueError: no") == "ValueError at train.py:12"
