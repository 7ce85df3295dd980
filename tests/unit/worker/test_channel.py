"""The worker's end of the pipe."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from kunicorn.ipc.channel import BlockingChannel, SupervisorGone
from kunicorn.ipc.messages import Drain, FrameError, FrameSplitter, FromWorker, Ping, Ready, StopFetcher, pack

Pipe = tuple[socket.socket, BlockingChannel]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(theirs.detach())
    with ours:
        yield ours, channel
    channel._socket.close()


def test_messages_that_arrive_in_one_piece_come_out_one_by_one(pipe: Pipe) -> None:
    supervisor, channel = pipe
    supervisor.sendall(pack(Ping(1)) + pack(Drain(2.0)))
    assert channel.receive() == Ping(1)
    assert channel.receive() == Drain(2.0)
    assert channel.receive(0.0) is None


def test_a_message_in_pieces_is_waited_for(pipe: Pipe) -> None:
    supervisor, channel = pipe
    frame = pack(Ping(1))
    supervisor.sendall(frame[:3])
    assert channel.receive(0.05) is None
    supervisor.sendall(frame[3:])
    assert channel.receive() == Ping(1)


def test_a_stop_without_a_deadline_survives_the_pipe(pipe: Pipe) -> None:
    supervisor, channel = pipe
    supervisor.sendall(pack(StopFetcher([1], float("inf"))))
    assert channel.receive() == StopFetcher([1], None)


def test_the_end_of_the_pipe_is_told(pipe: Pipe) -> None:
    supervisor, channel = pipe
    supervisor.close()
    with pytest.raises(SupervisorGone):
        channel.receive()
    with pytest.raises(SupervisorGone):
        channel.send(Ready())


def test_a_descriptor_that_was_closed_and_given_to_another_socket_is_the_pipes_end(pipe: Pipe) -> None:
    _, channel = pipe
    other, idle = socket.socketpair()
    with other, idle:
        os.dup2(idle.fileno(), channel._socket.fileno())
        with pytest.raises(SupervisorGone, match="closed by other code"):
            channel.receive(0.01)


def test_nonsense_is_told(pipe: Pipe) -> None:
    supervisor, channel = pipe
    supervisor.sendall(pack(Ready()))
    with pytest.raises(FrameError):
        channel.receive()


def test_what_the_worker_says_arrives_whole(pipe: Pipe) -> None:
    supervisor, channel = pipe
    channel.send(Ready())
    assert FrameSplitter(FromWorker).feed(supervisor.recv(100)) == [Ready()]
