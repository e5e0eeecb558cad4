"""What a record tells of checkpoints and their marks."""

from __future__ import annotations

from shoal import events
from shoal.events import Record
from shoal.watch.record.story import Story


def published(step: int, mark: str = "", *removed: str) -> events.CheckpointPublished:
    name = f"step-{step:08}-g1"
    return events.CheckpointPublished(
        checkpoint=name, step=step, size=1, seconds=0.1, blocked=0.0, removed=removed, reason="asked", mark=mark
    )


def story_of(*happened: events.AnyEvent) -> Story:
    story = Story()
    for number, event in enumerate(happened):
        story.add(Record(time=1000.0 + number, event=event))
    return story


def marks(story: Story) -> dict[int, str]:
    return {made.step: made.mark for made in story.checkpoints.values()}


def test_a_mark_moves_to_the_newest_checkpoint_that_got_it() -> None:
    assert marks(story_of(published(10, "best"), published(20, "best"), published(30))) == {10: "", 20: "best", 30: ""}


def test_a_checkpoint_may_get_a_mark_later_and_have_several() -> None:
    later = events.CheckpointMarked(checkpoint="step-00000020-g1", step=20, mark="best")
    assert marks(story_of(published(10, "best"), published(20, "last"), later)) == {10: "", 20: "last, best"}


def test_marks_in_the_store_beat_those_of_the_record() -> None:
    story = story_of(published(10, "best"), published(20))
    story.has_marks({"best": "step-00000020-g1", "good": "step-00000010-g1"})
    assert marks(story) == {10: "good", 20: "best"}
    story.has_marks({})
    assert marks(story) == {10: "", 20: ""}
