"""What `--ray` may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.job_config import from_mapping
from shoal.settings import texts
from shoal.settings.engines.ray_settings import RayWish, ray_wish


def test_without_words_a_worker_gets_a_core_or_one_for_each_thread() -> None:
    assert ray_wish("") == RayWish({"CPU": 1.0}, wait=60.0)
    assert ray_wish("", threads=4) == RayWish({"CPU": 4.0})


def test_all_words() -> None:
    assert ray_wish("cpus=2 gpus=0.5 memory=8G wait=10m tpu-v4=1", threads=4) == RayWish(
        {"CPU": 2.0, "GPU": 0.5, "memory": 8.0 * 2**30, "tpu-v4": 1.0}, wait=600.0
    )


def test_what_is_zero_is_not_asked_for() -> None:
    assert ray_wish("cpus=0 gpus=1").bundle == {"GPU": 1.0}


@pytest.mark.parametrize("text", ["gpus", "gpus=", "gpus=-1", "gpus=1.5", "memory=8Q", "wait=soon", "'gpus=1", "a b"])
def test_mistakes(text: str) -> None:
    with pytest.raises(UsageError):
        ray_wish(text)


@given(st.text(max_size=40))
def test_any_text_is_a_wish_or_a_mistake(text: str) -> None:
    try:
        wish = ray_wish(text)
    except UsageError:
        return
    assert wish.wait > 0
    assert all(number > 0 for number in wish.bundle.values())


def test_it_goes_with_ray_alone() -> None:
    with pytest.raises(UsageError) as failed:
        from_mapping({"ray": "gpus=1"}, origin="a test").check_together()
    assert str(failed.value) == texts.only_with_ray("gpus=1")
    from_mapping({"ray": "gpus=1", "on": "ray"}, origin="a test").check_together()
