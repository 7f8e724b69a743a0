"""Real processes of gpucalc without the half second of imports: a server imports it once and forks at each request.

A process started here has its own standard streams (pipes), working folder and environment, runs `gpucalc.cli.main`
and ends as the interpreter ends, with `main`'s status. What a fork cannot show is how the interpreter starts: locale,
`PYTHON…` variables, closed streams and which modules a command imports are tested with `cli.COMMAND`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LONGEST = 1 << 20  # bytes of arguments and environment in one request
PIPE = 4096  # bytes that a writable pipe takes at once
# What commands import when they need it; pandas, pyarrow and distributed are left to the few that do.
LIBRARIES = (
    "numpy.ma",
    "tabulate",
    "tomllib",
    *(f"matplotlib.backends.backend_{form}" for form in ("agg", "svg", "pdf")),
)


class Server:
    """The client's side: starts the server at the first request; it ends when this object's socket closes."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # The interpreter looks once whether a stream is a pipe; its children put their own in these places.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        self._socket = ours

    def run(self, arguments: tuple[str, ...], data: bytes, cwd: Any, timeout: float) -> tuple[int, bytes, bytes]:
        """Status (negative: the signal that ended it), standard output and standard error of one process."""
        request = {"arguments": arguments, "cwd": os.fspath(cwd or os.getcwd()), "environment": dict(os.environ)}
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin[0], stdout[1], stderr[1]]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for number in theirs:
            os.close(number)
        process = int(self._received())
        try:
            out, err = _communicate(stdin[1], data, [stdout[0], stderr[0]], time.monotonic() + timeout)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._received()
            raise
        return int(self._received()), out, err

    def _received(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            if answer := self._socket.recv(64):
                return answer
        _, said = self._process.communicate()
        raise RuntimeError(f"the server has ended: {said.decode()}")


def _communicate(stdin: int, data: bytes, outputs: list[int], deadline: float) -> list[bytes]:
    """Feed standard input and collect both outputs, whichever is ready, until the outputs end."""
    said = {number: bytearray() for number in outputs}
    left = memoryview(data)
    with selectors.DefaultSelector() as ready:
        ready.register(stdin, selectors.EVENT_WRITE)
        for number in outputs:
            ready.register(number, selectors.EVENT_READ)

        def end(number: int) -> None:
            ready.unregister(number)
            os.close(number)

        while any(number in ready.get_map() for number in outputs):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the process did not end in time")
            for key, _ in ready.select(remaining):
                if key.fd != stdin:
                    piece = os.read(key.fd, 1 << 16)
                    said[key.fd] += piece
                    if not piece:
                        end(key.fd)
                    continue
                try:
                    left = left[os.write(stdin, left[:PIPE]) :] if left else left
                except BrokenPipeError:  # a process that does not read its input
                    left = memoryview(b"")
                if not left:
                    end(stdin)
        if stdin in ready.get_map():
            end(stdin)
    return [bytes(said[number]) for number in outputs]


def _prepare() -> None:
    """Import every module of gpucalc and the libraries it uses, and build its option parser, once for all processes."""
    import importlib
    import pkgutil

    import typer.main

    import gpucalc

    for module in pkgutil.walk_packages(gpucalc.__path__, "gpucalc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # matplotlib is an extra
            importlib.import_module(name)
    typer.main.get_command = functools.cache(typer.main.get_command)
    root = typer.main.get_command(importlib.import_module("gpucalc.cli.app").app)
    for name in root.list_commands(None):  # each is built when it is asked for
        root.get_command(None, name)


def _serve(channel: socket.socket) -> list[str]:
    """Fork at each request; returns the arguments in each child, and in the server never."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, LONGEST, 3)
        if not request:
            os._exit(0)  # the tests have ended
        child = os.fork()
        if child == 0:
            asked = json.loads(request)
            channel.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.chdir(asked["cwd"])
            return asked["arguments"]
        for file in files:
            os.close(file)
        channel.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        channel.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    import gc
    import importlib.util

    sys.path[0] = str(Path(__file__).parent.parent)  # as `python -m gpucalc` at the root of the repository
    _prepare()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    # Workers that a command starts look here for the program to run, as they do under `python -m gpucalc`.
    __spec__ = importlib.util.find_spec("gpucalc.__main__")
    sys.argv = ["gpucalc", *_serve(socket.socket(fileno=int(sys.argv[1])))]
    from gpucalc.cli import main

    main()
