"""Checkpoints at any URL that fsspec knows: s3://bucket/prefix, gs://, hdfs://, sftp:// and so on.

In object stores (fsspec's asynchronous file systems) an object appears when its upload is complete, and an upload that
fails is aborted. In the others a file is written beside its place under a hidden name and moved. After a failure that
may pass, such as throttling or a cut connection, a request is tried again for about `patience` seconds; every error is
raised as OSError with the place and the reason. Credentials and endpoints are those of the file system, from its usual
variables and files.
"""

from __future__ import annotations

import errno
import itertools
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

import fsspec.asyn  # type: ignore[import-untyped]  # fsspec has no types
import fsspec.core  # type: ignore[import-untyped]  # see above

from shoal.checkpoint import texts
from shoal.checkpoint.stores.names import checked_parts
from shoal.checkpoint.stores.store import Buffer, Store
from shoal.errors import ShoalError, UsageError

PATIENCE = 60.0  # seconds
BLOCK = 16 * 2**20  # bytes of one part of an upload; S3 takes at most 10,000 of them for an object
FIRST_PAUSE = 0.2  # seconds before the second try; each further pause is twice as long
LONGEST_PAUSE = 10.0
ANSWER = 10.0  # seconds that S3 may take to answer one try of a request
MAY_PASS = (errno.EBUSY, errno.EAGAIN, errno.EIO, errno.EREMOTEIO, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH)
# Errors of the libraries below fsspec that may pass and are no OSErrors.
MAY_PASS_BY_NAME = {
    "aiohttp.client_exceptions.ClientError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.IncompleteReadError",
    "botocore.exceptions.ResponseStreamingError",
    "http.client.HTTPException",
}

T = TypeVar("T")


class RemoteStore(Store):
    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.place = _public(url)
        self._patience = patience
        self._fs, root = _open_filesystem(url, patience)
        self._root = root.rstrip("/")
        self._is_object_store = isinstance(self._fs, fsspec.asyn.AsyncFileSystem)

    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        path = self._path(name)
        blocks = _in_blocks(chunks)
        first = next(blocks)
        if not self._is_object_store:
            self._write_aside(name, path, itertools.chain([first], blocks))
        elif len(first) < BLOCK:
            self._try(name, lambda: self._fs.pipe_file(path, first))
        else:
            self._upload(name, path, itertools.chain([first], blocks))

    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        path = self._path(name)
        if end is not None and end <= start:
            return b""
        try:
            data: bytes = self._try(name, lambda: self._fs.cat_file(path, start=start or None, end=end))
        except OSError as error:  # object stores refuse ranges that begin behind the end
            if error.errno == errno.EINVAL and self.size(name) <= start:
                return b""
            raise
        return data

    def size(self, name: str) -> int:
        path = self._path(name)
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._try(name, lambda: self._fs.info(path))
        if found["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "It is a folder, no file", f"{self.place}/{name}")
        return int(found["size"])

    def names(self, folder: str = "") -> list[str]:
        path = self._path(folder) if folder else self._root
        self._fs.invalidate_cache()
        try:
            listed: list[dict[str, Any]] = self._try(folder, lambda: self._fs.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        whole = {entry["name"].strip("/") for entry in listed}
        below = {name.rpartition("/")[2] for name in whole - {path.strip("/")}}
        return sorted(name for name in below if name and not name.startswith("."))

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._fs.invalidate_cache()
        try:
            self._try(name, lambda: self._fs.rm(path, recursive=True))
        except FileNotFoundError:
            return

    def _upload(self, name: str, path: str, blocks: Iterator[bytes]) -> None:
        """Upload block by block; the file system itself tries each request again."""
        try:
            file = self._fs.open(path, "wb", block_size=BLOCK)
            try:
                for block in blocks:
                    file.write(block)
                file.close()
            except BaseException:
                file.closed = True  # otherwise garbage collection would complete the upload
                file.discard()
                raise
        except Exception as error:
            self._fail(name, error)

    def _write_aside(self, name: str, path: str, blocks: Iterator[bytes]) -> None:
        parent, _, last = path.rpartition("/")
        aside = f"{parent}/.{last[:100]}-{secrets.token_hex(8)}"
        try:
            self._fs.makedirs(parent, exist_ok=True)
            try:
                with self._fs.open(aside, "wb") as file:
                    for block in blocks:
                        file.write(block)
                self._fs.mv(aside, path)
            except BaseException:
                if self._fs.exists(aside):
                    self._fs.rm_file(aside)
                raise
        except Exception as error:
            self._fail(name, error)

    def _try(self, name: str, action: Callable[[], T]) -> T:
        """Try again and again, as long as failures may pass and patience lasts."""
        limit = time.monotonic() + self._patience
        for attempt in itertools.count():
            try:
                return action()
            except Exception as error:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)
                if not _may_pass(error) or time.monotonic() + pause > limit:
                    self._fail(name, error)
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _fail(self, name: str, error: Exception) -> NoReturn:
        """Raise an error as an OSError that names the place."""
        if isinstance(error, ShoalError):
            raise error
        place = f"{self.place}/{name}" if name else self.place
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "There is no such file", place) from error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        code = getattr(error, "errno", None) or errno.EIO
        kind = type(error) if type(error) in (PermissionError, NotADirectoryError, IsADirectoryError) else OSError
        raise kind(code, reason, place) from error

    def _path(self, name: str) -> str:
        return "/".join((self._root, *checked_parts(name)))


def _public(url: str) -> str:
    """The URL without a user name and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def _open_filesystem(url: str, patience: float) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    options: dict[str, Any] = {}
    if scheme in ("s3", "s3a"):
        retries = {"mode": "standard", "total_max_attempts": _attempts(patience)}
        options = {"config_kwargs": {"retries": retries, "connect_timeout": ANSWER, "read_timeout": ANSWER}}
    try:
        filesystem, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        what = "install shoal[s3]" if options else str(error)
        raise UsageError(texts.no_package(scheme, what)) from None
    except Exception as error:
        raise UsageError(texts.no_store(_public(url), str(error).replace(url, _public(url)))) from None
    if options:
        filesystem.retries = 1  # s3fs's own retries would multiply those of the client below it
    return filesystem, root


def _attempts(patience: float) -> int:
    """botocore waits at most 1, 2, 4, 8, 16, 20, 20, ... seconds between tries of one request."""
    attempts, waited = 1, 0.0
    while waited < patience:
        waited += min(20.0, 2.0 ** (attempts - 1))
        attempts += 1
    return attempts


def _may_pass(error: Exception) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in MAY_PASS
    return any(f"{kind.__module__}.{kind.__qualname__}" in MAY_PASS_BY_NAME for kind in type(error).__mro__)


def _in_blocks(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """The same bytes in blocks of equal size; the last block is shorter and may be empty."""
    collected = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk).cast("B")
        while len(collected) + len(rest) >= BLOCK:
            count = BLOCK - len(collected)
            yield bytes(collected) + bytes(rest[:count])
            collected.clear()
            rest = rest[count:]
        collected += rest
    yield bytes(collected)
