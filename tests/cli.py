"""Running the command line as a real process, forked from a server that has imported gpucalc or started anew."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from forkserver import Server

COMMAND = (sys.executable, "-m", "gpucalc")
JOB = ("--gpu", "h100-sxm-80gb", "--gpus", "64", "--seq-len", "8192", "--global-batch", "128")


@dataclass
class Ran:
    """What a process left behind."""

    status: int
    out: str
    err: str

    def sentence(self, status: int = 2) -> str:
        """The one sentence of a user's mistake; nothing on standard output, no traceback."""
        assert self.status == status, (self.status, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


def gpucalc(*arguments: str, stdin: str | bytes = b"", env: dict[str, str] | None = None, cwd: Any = None) -> Ran:
    """Run gpucalc with `arguments`, standard input piped; with an environment of its own as a new interpreter."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    if env is not None:
        done = subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=120, env=env, cwd=cwd)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    status, out, err = _server().run(arguments, data, cwd, timeout=120)
    return Ran(status, out.decode(), err.decode())


@functools.cache
def _server() -> Server:
    return Server()


def shell(line: str) -> Ran:
    """Run a line of bash in which `$G` is gpucalc."""
    script = f"G='{' '.join(COMMAND)}'; {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=120)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
