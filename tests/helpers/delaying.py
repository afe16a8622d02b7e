"""A proxy on loopback that delays every byte by half a round trip each way, cuts and counts."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Proxy:
    """Between a device and a server at `port`; listens at `self.port`. delay_s: one way."""

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.bytes_up = self.bytes_down = 0
        self.cut_after: int | None = None  # chunks, either way, until connections are cut
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _connected(self, reader, writer) -> None:
        try:
            up = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, up[1]}
        await asyncio.gather(
            self._pump(reader, up[1], "bytes_up"), self._pump(up[0], writer, "bytes_down")
        )
        self._writers -= {writer, up[1]}

    async def _pump(self, reader, writer, counter: str) -> None:
        waiting: asyncio.Queue = asyncio.Queue()
        sending = asyncio.create_task(self._send(waiting, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                setattr(self, counter, getattr(self, counter) + len(data))
                if self.cut_after is not None:
                    self.cut_after -= 1
                    if self.cut_after < 0:
                        self.cut_after = None
                        for one in list(self._writers):
                            one.transport.abort()
                        break
                waiting.put_nowait((self._loop.time() + self.delay_s, data))
        waiting.put_nowait((0.0, b""))
        await sending

    async def _send(self, waiting: asyncio.Queue, writer) -> None:
        while True:
            due, data = await waiting.get()
            if not data:
                break
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            with contextlib.suppress(OSError):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    def cut(self) -> None:
        """End all connections now."""

        def abort() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    @property
    def url(self) -> str:
        """Return the URL for devices."""
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more."""

        async def stop() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
