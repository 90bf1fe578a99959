"""A few processes that are connected by gloo, forked from this one so that nothing is imported again."""

import io
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch

TIMEOUT = 1800  # seconds to wait for an answer


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function gives in each of some connected processes, in their order."""
    context, port = multiprocessing.get_context("fork"), _free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    started = [
        context.Process(target=_begin, args=(rank, count, port, pipe[1], work, arguments), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    for process in started:
        process.start()
    answers: list[Any] = [reader.recv() if reader.poll(TIMEOUT) else "it did not answer" for reader, _ in pipes]
    for process in started:
        process.join(10)
        process.kill()
    for answer in answers:
        assert not isinstance(answer, str), answer
    return [torch.load(io.BytesIO(answer[0])) for answer in answers]


def _begin(rank: int, count: int, port: int, pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()} if count > 1 else {}
    if count > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "forked"}
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    try:
        content = io.BytesIO()
        torch.save(work(*arguments), content)  # tensors that a pipe sends would live in the process that ends
        pipe.send((content.getvalue(),))
    except BaseException:
        pipe.send(traceback.format_exc())


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
