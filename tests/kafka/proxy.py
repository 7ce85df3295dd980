"""TCP links that can be made slow, reset or cut, in a process of their own: `python -m tests.kafka.proxy <links>`.

Our own, as toxiproxy and its like are servers to be downloaded for their platform, and a cut in one direction that
holds back what is under way, as TCP does, is these hundred lines.

The argument is JSON, `{"link": {"listening port": port to connect to}}`. It says `ready`; then it takes commands from
standard input, one a line, and answers each with `done`: `slow a 0.3`, `cut a to from`, `reset a`, `heal a`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Mapping

CHUNK = 65_536


class Link:
    """Everything between one client and the servers."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._open = {"to": asyncio.Event(), "from": asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()
        self.heal()

    def heal(self) -> None:
        """Quick and whole; what was held back arrives now."""
        self._delay = 0.0
        for event in self._open.values():
            event.set()

    def slow(self, seconds: str) -> None:
        """Every piece of data takes so long, in each direction."""
        self._delay = float(seconds)

    def cut(self, *directions: str) -> None:
        """Nothing gets through `to` the servers, or `from` them; connections stay, and new ones are accepted."""
        for direction in directions:
            self._open[direction].clear()

    def reset(self) -> None:
        """Every connection ends with RST."""
        for writer in self._writers:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def serve(self, listen: int, target: int) -> None:
        """Accept on one port and connect to the other, for ever."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                their_reader, their_writer = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                # The broker is down: so is the link to it.
                writer.transport.abort()
                return
            pair = {writer, their_writer}
            self._writers |= pair
            try:
                await _first(self._pump(reader, their_writer, "to"), self._pump(their_reader, writer, "from"))
            finally:
                self._writers -= pair
                for each in pair:
                    each.transport.abort()

        await asyncio.start_server(accepted, "127.0.0.1", listen)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._open[direction].wait()
            writer.write(data)
            await writer.drain()
        # The end of the stream is held back like data.
        await self._open[direction].wait()


async def _first(*pumps: Coroutine[None, None, None]) -> None:
    """Until one direction has ended; a connection that broke is an end like others."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def main(plan: Mapping[str, Mapping[str, int]]) -> None:
    """Serve until standard input ends."""
    links = {name: Link() for name in plan}
    for name, ports in plan.items():
        for listen, target in ports.items():
            await links[name].serve(int(listen), target)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, name, *arguments = line.split()
        commands: dict[str, Callable[..., None]] = {
            "slow": links[name].slow,
            "cut": links[name].cut,
            "reset": links[name].reset,
            "heal": links[name].heal,
        }
        commands[what](*arguments)
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
