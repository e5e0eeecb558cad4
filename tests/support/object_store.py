"""A real S3 server (moto's) behind a proxy that throttles and cuts connections on request.

The server is a process of its own, the proxy one thread. Both may outlive a test: start them in a fixture of a module.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import fsspec.asyn

BUCKET = "bucket"
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
PIECE = 64 * 1024  # bytes moved at once


@dataclass
class Faults:
    """What the proxy does to the next requests. Set and read from the test's thread."""

    throttle: int = 0  # so many requests are answered with 503 SlowDown
    cut_uploads: int = 0  # so many requests with a large body lose their connection in the middle of it
    cut_downloads: int = 0  # so many large answers end in the middle
    cut_after: int = 1024 * 1024  # bytes of the body, and what counts as large
    is_gone: bool = False  # every connection is closed at once
    seen: list[str] = field(default_factory=list)  # "PUT /bucket/key?partNumber=1" of every request


class Proxy:
    """One request per connection, so that no HTTP has to be understood beyond the request's head."""

    def __init__(self, server_port: int) -> None:
        self.faults = Faults()
        self._server_port = server_port
        self._handling: set[asyncio.Task[None]] = set()  # a loop alone does not keep its tasks
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._handle, "127.0.0.1", 0, limit=2**20)

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if not self.faults.is_gone:
                    await self._serve(reader, writer)
        finally:
            self._handling.discard(task)
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        self.faults.seen.append(line.rpartition(" ")[0])
        length = next((int(text[15:]) for text in lines if text.lower().startswith("content-length:")), 0)
        if self.faults.throttle:
            self.faults.throttle -= 1
            await self._throttle(reader, writer, head, length)
            return
        cut_upload = self.faults.cut_uploads > 0 and length > self.faults.cut_after
        self.faults.cut_uploads -= cut_upload
        cut_download = self.faults.cut_downloads > 0 and line.startswith("GET ")
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        lines = [text for text in lines if text and not text.lower().startswith("connection:")]
        server_writer.write("\r\n".join([line, *lines, "Connection: close", "", ""]).encode("latin-1"))
        limit = self.faults.cut_after if cut_upload else None
        up = asyncio.create_task(_pump(reader, server_writer, limit))
        down = asyncio.create_task(_pump(server_reader, writer, self.faults.cut_after if cut_download else None))
        try:  # The answer ends when the server closes. A client that closes first wants none, and a cut is a cut.
            done, _ = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            self.faults.cut_downloads -= down in done and down.result()
            if up in done or down.result():
                writer.transport.abort()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            server_writer.transport.abort()

    async def _throttle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, length: int
    ) -> None:
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(SLOW_DOWN) + SLOW_DOWN)
        await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> bool:
    """Until the reader ends, or more than `limit` bytes were moved: True."""
    moved = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
            moved += len(piece)
            if limit is not None and moved > limit:
                return True
    return False


@dataclass(frozen=True)
class ObjectStore:
    proxy: Proxy
    server_port: int

    @property
    def faults(self) -> Faults:
        return self.proxy.faults

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def ask(self, path: str) -> str:
        """Directly, past the proxy: the text of the answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server_port}/{BUCKET}{path}") as answer:
            return str(answer.read().decode())

    def keys(self) -> list[str]:
        return [part.partition("</Key>")[0] for part in self.ask("?list-type=2").split("<Key>")[1:]]

    def uploads_under_way(self) -> int:
        return self.ask("?uploads").count("<UploadId>")


@functools.cache
def _start_fsspec() -> None:
    """fsspec's own threads are started with its first use and meant to stay: here, rather than in a test."""
    lookups = ThreadPoolExecutor(1, thread_name_prefix="fsspec")
    lookups.submit(int).result()
    loop = fsspec.asyn.get_loop()
    loop.call_soon_threadsafe(loop.set_default_executor, lookups)


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    _start_fsspec()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            port = _port_of(server)
            _make_bucket(port)
            proxy = Proxy(port)
            try:
                yield ObjectStore(proxy, port)
            finally:
                proxy.close()
        finally:
            server.kill()


def _port_of(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    for line in server.stderr:
        if "Running on http://127.0.0.1:" in line:
            threading.Thread(target=server.stderr.read, daemon=True).start()  # or its log would fill the pipe
            return int(line.rpartition(":")[2].split()[0])
    raise AssertionError("moto's server did not start")


def _make_bucket(port: int) -> None:
    limit = time.monotonic() + 30
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request).close()
            return
        except urllib.error.URLError:
            assert time.monotonic() < limit, "moto's server does not answer"
            time.sleep(0.1)
