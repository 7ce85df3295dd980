"""TCP links that can be made slow, reset or cut, and faults of single requests, in a process of its own:
`python -m tests.kafka.proxy <links> [raw]`.

Our own, as toxiproxy and its like are servers to be downloaded for their platform, and a cut in one direction that
holds back what is under way, as TCP does, is these hundred lines.

With `raw` it passes on bytes as they come, of TLS for instance, and requests cannot be told apart to be scripted.
The argument is JSON, `{"link": {"listening port": port to connect to}}`. It says `ready`; then it takes commands from
standard input, one a line, and answers each with `done`: `slow a 0.3`, `cut a to from`, `reset a`, `heal a`, and
`script a 12 refuse 27 1`, the API's key, a `tests.kafka.scripted.Kind`, its amount and how many times.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

from tests.kafka.scripted import Conversation, Fault, Kind, Script, Sent

_LENGTH = 4


class Link:
    """Everything between one client and the servers."""

    def __init__(self, raw: bool = False) -> None:
        self._pieces = _chunks if raw else _frames
        self._raw = raw
        self._delay = 0.0
        self._open = {"to": asyncio.Event(), "from": asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._script = Script()
        self.heal()

    def heal(self) -> None:
        """Quick and whole; what was held back arrives now."""
        self._delay = 0.0
        self._script.forget()
        for event in self._open.values():
            event.set()

    def script(self, api: str, kind: str, amount: str, times: str) -> None:
        """A fault for the next requests of that API."""
        self._script.plan(int(api), Fault(Kind(kind), float(amount)), int(times))

    def slow(self, seconds: str) -> None:
        """Every request and every answer takes so long."""
        self._delay = float(seconds)

    def cut(self, *directions: str) -> None:
        """Nothing gets through `to` the servers, or `from` them; connections stay, and new ones are accepted."""
        for direction in directions:
            self._open[direction].clear()

    def reset(self) -> None:
        """Every connection ends with RST."""
        for writer in self._writers:
            _reset(writer)

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
                await self._converse(reader, their_writer, their_reader, writer)
            finally:
                self._writers -= pair
                for each in pair:
                    each.transport.abort()

        await asyncio.start_server(accepted, "127.0.0.1", listen)

    async def _converse(
        self,
        client: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
    ) -> None:
        """Until one side ends the connection; the end is held back like what comes before it."""
        conversation = Conversation(self._script)
        requests, answers = Passage(), Passage()

        async def ask() -> None:
            async for frame in self._pieces(client):
                if self._raw:
                    requests.put(Sent(frame))
                    continue
                if conversation.asks(frame):
                    requests.put(Sent(frame))
                answers.put(*conversation.due())
            requests.put(None)

        async def hear() -> None:
            async for frame in self._pieces(broker):
                if self._raw:
                    answers.put(Sent(frame))
                    continue
                conversation.answers(frame)
                answers.put(*conversation.due())
            answers.put(None)

        reading = [asyncio.create_task(ask()), asyncio.create_task(hear())]
        try:
            await _first(self._carry(requests, to_broker, "to"), self._carry(answers, to_client, "from"))
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _carry(self, passage: Passage, writer: asyncio.StreamWriter, direction: str) -> None:
        while (item := await passage.get()) is not None:
            sent, since = item
            left = since + self._delay + sent.late - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, left))
            await self._open[direction].wait()
            if sent.reset:
                _reset(writer)
            elif sent.frame is None:
                await asyncio.Event().wait()
            else:
                writer.write(sent.frame)
                await writer.drain()
        await self._open[direction].wait()


class Passage:
    """What is on its way in one direction, and since when; None: the end of the stream."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Sent, float] | None] = asyncio.Queue()
        self.get = self._queue.get

    def put(self, *items: Sent | None) -> None:
        """Behind what is there."""
        for sent in items:
            self._queue.put_nowait(None if sent is None else (sent, asyncio.get_running_loop().time()))


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Whole requests or answers, each with its length, until the stream ends."""
    try:
        while True:
            length = await reader.readexactly(_LENGTH)
            yield length + await reader.readexactly(int.from_bytes(length, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Whatever is there, until the stream ends."""
    try:
        while chunk := await reader.read(1 << 16):
            yield chunk
    except ConnectionError:
        return


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _first(*directions: Coroutine[None, None, None]) -> None:
    """Until one direction has ended; a connection that broke is an end like others."""
    tasks = [asyncio.create_task(each) for each in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def main(plan: Mapping[str, Mapping[str, int]], raw: bool) -> None:
    """Serve until standard input ends."""
    links = {name: Link(raw) for name in plan}
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
            "script": links[name].script,
        }
        commands[what](*arguments)
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), "raw" in sys.argv[2:]))
