"""Makes one checkpoint of the parts that workers have written, in any store. For the coordinator's process: no torch.

Headers of the parts are read, never their tensors. The manifest, written last, publishes the checkpoint; only then
is the mark moved and are older checkpoints removed. A failure of either is printed on stderr and does not undo the
publication: the next publication removes what this one could not.
"""

from __future__ import annotations

import contextlib
import sys
import time

from shoal.checkpoint import texts
from shoal.checkpoint.parts.part_file import read_header
from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.joining import index_in, join
from shoal.checkpoint.published.manifest import FORMAT, MANIFEST, FileEntry, Manifest, PartIndex, encode_manifest
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable, WireError
from shoal.membership.publisher import Publisher, PublishOutcome, PublishRequest


class StorePublisher(Publisher):
    def __init__(self, store: Store, keep: int) -> None:
        self._store = store
        self._keep = keep  # how many of the newest stay, besides marked ones; at least 1

    def publish(self, request: PublishRequest) -> PublishOutcome:
        if request.mark:
            catalogue.check_label(request.mark)
        manifest = self._joined(request)
        path = f"{request.checkpoint}/{MANIFEST}"
        was_published = catalogue.is_published(self._store, request.checkpoint)
        try:
            self._store.write(path, [encode_manifest(manifest)])
        except OSError:
            if not was_published:
                with contextlib.suppress(OSError):  # the write may have succeeded although the store's answer was lost
                    self._store.remove(path)
            raise
        return PublishOutcome(size=manifest.size, removed=self._make_room(request))

    def _joined(self, request: PublishRequest) -> Manifest:
        indexes: list[PartIndex] = []
        files: list[FileEntry] = []
        for file in request.files:
            path = f"{request.checkpoint}/{file}"
            try:
                header, size = read_header(self._store, path), self._store.size(path)
            except WireError as error:
                raise CheckpointUnusable(texts.damaged(path, error)) from None
            if size != header.file_size:
                raise CheckpointUnusable(texts.shorter_than_its_header(path, size, header.file_size))
            files.append(FileEntry(name=file, size=size))
            indexes.append(index_in(header, file=file))
        about, tensors = join(indexes, checkpoint=request.checkpoint)
        return Manifest(
            format=FORMAT,
            checkpoint=request.checkpoint,
            written=time.time(),
            about=about,
            files=tuple(files),
            tensors=tensors,
        )

    def _make_room(self, request: PublishRequest) -> tuple[str, ...]:
        """Move the mark, remove checkpoints that are too old, and return their names."""
        removed: list[str] = []
        try:
            if request.mark:
                catalogue.set_mark(self._store, request.mark, request.checkpoint)
            names = [listed.name for listed in catalogue.published(self._store)]
            marked = set(catalogue.marks(self._store).values()) | {request.checkpoint}
            for name in catalogue.to_remove(names, marked, self._keep):
                catalogue.remove(self._store, name)
                removed.append(name)
            self._clear_leftovers(request.checkpoint)
        except OSError as error:
            sys.stderr.write(f"shoal: {texts.not_tidied(request.checkpoint, error)}\n")
        return tuple(removed)

    def _clear_leftovers(self, newest: str) -> None:
        """Remove parts that could not be removed before: of lost checkpoints, and of old ones without a manifest."""
        place = catalogue.age_of(newest)
        for name in catalogue.unpublished(self._store):
            if catalogue.age_of(name) < place:
                self._store.remove(name)

    def discard(self, checkpoint: str) -> None:
        """Remove the parts of an unpublished checkpoint; a published one of that name is left alone."""
        if not catalogue.is_published(self._store, checkpoint):
            self._store.remove(checkpoint)

    def clean(self) -> None:
        for name in catalogue.unpublished(self._store):
            self._store.remove(name)
