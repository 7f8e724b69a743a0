"""The command line: parse → call → render. `main` turns every failure into one sentence and a status."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import NoReturn

from gpucalc.core.errors import ExitStatus, GpucalcError, UsageError, readable


def main() -> NoReturn:
    """Run the command line and leave with its status."""
    # Nothing here multiplies matrices: the threads that numpy's BLAS starts would cost a third of a query's time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not debug:
        # An overflow on the way is told by what comes of it; a line of numpy about our source helps nobody.
        warnings.filterwarnings("ignore", category=RuntimeWarning)
    try:
        closed = _occupy_closed_streams()
        if closed:
            raise UsageError("standard output is closed; nothing can be written")
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        status = ExitStatus.OK
    except KeyboardInterrupt:
        _abandon_stdout()
        status = ExitStatus.INTERRUPTED
    except GpucalcError as error:
        if debug:
            raise
        status = _fail(str(error), error.status)
    except OSError as error:
        if debug:
            raise
        # Files are read where their errors are told; what is left is writing, to a full disk for example.
        _abandon_stdout()
        status = _fail(f"cannot write: {error.strerror or error}", ExitStatus.USAGE)
    except MemoryError:
        if debug:
            raise
        status = _fail(
            "this takes more memory than the process may have; ask about fewer GPUs or rows, or give a smaller file",
            ExitStatus.USAGE,
        )
    except Exception as error:
        if debug:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        status = _fail(f"internal error: {said}; run with --debug for the traceback", ExitStatus.INTERNAL)
    _leave(status)


def _run(arguments: list[str]) -> int:
    import typer

    from gpucalc.cli.app import app, is_usage_error, usage_sentence

    try:
        status = app(arguments, prog_name="gpucalc", standalone_mode=False)
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:  # the parser's own way to leave on a closed pipe
        raise BrokenPipeError from leave
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not is_usage_error(error):
            raise
        sys.stdout.flush()
        print(readable(usage_sentence(error)), file=sys.stderr)
        return ExitStatus.USAGE
    return status if isinstance(status, int) else ExitStatus.OK


def _occupy_closed_streams() -> bool:
    """Put the null device where a standard stream is closed; whether standard output was."""
    closed = sys.stdout is None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Otherwise the next file opened would take the number and be written over.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
            if name != "stdin":
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    if not closed:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")  # type: ignore[union-attr]
    return closed


def _fail(sentence: str, status: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _abandon_stdout()
    with contextlib.suppress(OSError):  # nobody may be left to hear it; the status says it too
        print(f"gpucalc: {readable(sentence)}", file=sys.stderr, flush=True)
    return status


def _abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that the interpreter's last flush cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def _leave(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        _abandon_stdout()
    raise SystemExit(int(status))
