"""Where a resumed job goes on: the newest checkpoint that every worker can read, agreed on before the script runs.

The script then runs from the top as a newcomer's does: loops that were over yield nothing, recorded results are handed
out again, and the loop that was going on gets the state and goes on at its place in the data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import msgspec
import torch

from shoal.bounds import ItemList, Name
from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.checkpoint.published.catalogue import load_manifest, published
from shoal.checkpoint.published.manifest import OWN, Manifest
from shoal.checkpoint.published.reader import read_own, read_state
from shoal.checkpoint.state_tree import Tree
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable
from shoal.events import Advised, CheckpointRefused, Resumed
from shoal.training import texts
from shoal.training.saving.saving import CODEC
from shoal.training.script.call_terms import resume_difference
from shoal.training.script.loop_end import without_later
from shoal.training.script.past import Past
from shoal.training.session import Session
from shoal.values import Cursor


def resume(session: Session, store: Store, *, must_find: bool = True, trusted: int | None = None) -> None:
    """Let the session's script go on from a checkpoint. Raises CheckpointUnusable where none can be used.

    Without `must_find` a script for which there is none starts from the top. Checkpoints of steps after `trusted` are
    refused. Raises ExchangeFailed.
    """
    names = _listed(session, store)
    reasons, has_begun = [], False
    for name in names:
        found, reason = _read(store, name, trusted, session.peers.group.rank)
        lacking = _who_lacks_it(session, name, has_it=found is not None)
        if not lacking and found is not None:
            if found[0].about.kind == "full" and found[0].about.loop == 0:
                has_begun = True  # saved before the first loop: all that led there is done again, and gives the same
                continue
            _take_up(session, *found)
            return
        if reason:
            reasons.append(reason)
        if lacking and lacking[0] == session.peers.group.rank:  # one worker reports it for all
            session.peers.report(CheckpointRefused(checkpoint=name, file=_file_in(reason, name), reason=reason))
    if has_begun or (not must_find and (not names or trusted is not None)):
        return
    raise CheckpointUnusable(texts.no_checkpoint(store.place, len(names), reasons))


def _listed(session: Session, store: Store) -> list[str]:
    """Names that the first worker sees: a checkpoint published at this moment is there for all workers or for none."""
    names: list[str] = []
    if session.peers.group.rank == 0:
        try:
            names = [listed.name for listed in published(store)]
        except OSError as error:
            text = texts.checkpoints_unreadable(store.place, error.strerror or str(error))
            raise CheckpointUnusable(text) from None
    data = broadcast_bytes(msgspec.msgpack.encode(names), 0, session.peers.group, label="names of checkpoints")
    return msgspec.msgpack.decode(data, type=ItemList[Name])


Read = tuple[Manifest, Tree, Mapping[str, torch.Tensor]]  # the last: what is this worker's alone


def _read(store: Store, name: str, trusted: int | None, rank: int) -> tuple[Read | None, str]:
    """The checkpoint, or why it is of no use to this worker."""
    try:
        manifest = load_manifest(store, name)
        if trusted is not None and manifest.about.step > trusted:
            return None, f"{name} was made after step {trusted}, when the workers' parameters were last the same"
        return (manifest, read_state(store, manifest), read_own(store, manifest, rank)), ""
    except CheckpointUnusable as error:
        return None, str(error)
    except OSError as error:
        return None, f"{name} in {store.place} cannot be read: {error.strerror or error}"


def _take_up_own(session: Session, manifest: Manifest, own: Mapping[str, torch.Tensor]) -> None:
    """Restore the codec's residual bit for bit, or report that it is dropped: one worker's is of no use to another."""
    peers, then, now = session.peers, manifest.about.generation, session.peers.generation
    has_any = any(entry.name.startswith(OWN) for entry in manifest.tensors)
    strategy = tomllib.loads(manifest.about.config).get("strategy")  # each strategy has keys of its own
    if (then.size, then.codec, strategy) == (now.size, now.codec, session.config.strategy):
        peers.codec.load({name.removeprefix(CODEC): tensor for name, tensor in own.items() if name.startswith(CODEC)})
    elif has_any and peers.group.rank == 0:
        known, wanted = (then.size, strategy), (now.size, session.config.strategy, now.codec)
        text = texts.residual_dropped(then.codec, texts.residual_misfits(manifest.checkpoint, known, wanted))
        peers.report(Advised(worker=peers.worker, text=text))


def _who_lacks_it(session: Session, name: str, *, has_it: bool) -> list[int]:
    """Ranks that cannot read this checkpoint."""
    group = session.peers.group
    lacking = torch.zeros(group.size, dtype=torch.float64)
    lacking[group.rank] = float(not has_it)
    group.all_reduce(lacking, label=f"who can read {name}").wait()
    return [rank for rank, lacks in enumerate(lacking.tolist()) if lacks]


def _take_up(session: Session, manifest: Manifest, state: Tree, own: Mapping[str, torch.Tensor]) -> None:
    about = manifest.about
    _take_up_own(session, manifest, own)
    state = without_later(state)
    if about.kind == "weights":
        session.watched.start_from(state["models"])
    else:
        past = Past(
            state=state,
            loop=max(1, about.loop),
            first_step=about.first_step,
            results=tuple(state["results"]),
            is_resumed=True,
        )
        session.place.go_through(past)
        session.saver.go_on_from(about.step, manifest.checkpoint)
    if session.peers.group.rank == 0:
        reason = about.cursor.text if about.kind == "full" else "imported weights"
        workers = about.generation.size
        session.peers.report(Resumed(checkpoint=manifest.checkpoint, step=about.step, workers=workers, reason=reason))


def check_place(session: Session, past: Past, terms: Mapping[str, str]) -> None:
    """Check that the checkpoint's place in its data is one in the data of the script's loop, which has these terms.

    Raises CheckpointUnusable where it is not: some samples would be used twice, and others never.
    """
    epoch, position = past.state["cursor"]
    then = past.state.get("terms", {})
    found = resume_difference(then, terms, is_inside=bool(position or past.state.get("gaps")))
    if found is not None:
        place = Cursor(epoch=epoch, position=position).text
        raise CheckpointUnusable(texts.loop_changed(session.saver.last_name, found, loop=past.loop, place=place))


def _file_in(reason: str, name: str) -> str:
    """Errors about one file of a checkpoint begin with `name/file`."""
    first = reason.partition(" ")[0]
    return first.removeprefix(f"{name}/") if first.startswith(f"{name}/") else ""
