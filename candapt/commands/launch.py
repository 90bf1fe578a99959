"""Several processes for one command: `--devices` and `--nodes` start them by the engine of `torchrun`.

A process that `torchrun` started knows it by its environment, and starts no others.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from candapt import processes
from candapt.errors import LOST_CODE, UserError
from candapt.settings import check_limits, setting
from candapt.storage.interruption import Interrupted
from candapt.storage.safe_reading import shortened

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

MAX_PROCESSES = 10_000  # on one machine or in number of machines; more are taken for a mistake
PER_CORE, ALWAYS = 4, 16  # processes for each core, and on any machine, that are started; more are taken for a mistake
WAIT_SECONDS = 600  # how long the machines of a run wait for each other at its start


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """How many processes work on a command."""

    devices: int = setting(1, low=1, high=MAX_PROCESSES)
    """Processes on this machine: one for each GPU; without a GPU, up to four for each core, or 16 if that is more."""
    nodes: int = setting(1, low=1, high=MAX_PROCESSES)
    """Number of machines; start the same command on each of them, with the same files at the same places."""
    rendezvous: str | None = None
    """HOST:PORT of one of the machines, where they meet; needed with --nodes."""

    def __post_init__(self) -> None:
        """Check the numbers, which would else count as one process or be met by a machine that cannot cope."""
        check_limits(self, "--")

    @property
    def several(self) -> bool:
        """Whether other processes are to be started; a process that was started itself starts none."""
        return self.devices * self.nodes > 1 and processes.started() == 1

    @property
    def flags(self) -> list[str]:
        """The flags that ask for as many processes."""
        given = {name: getattr(self, name) for name in PROCESSES}
        return [f"--{name}={value}" for name, value in given.items() if value not in (1, None)]


PROCESSES = tuple(item.name for item in fields(ProcessOptions))  # flags that a process that was started does not get


def launched(command: str, arguments: Sequence[str], options: ProcessOptions) -> bool:
    """Whether processes that were started here did the work of a command."""
    if options.several:
        launch(command, arguments, options)
    return options.several


def launch(command: str, arguments: Sequence[str], options: ProcessOptions, advice: str = "repeat the command") -> None:
    """Start the processes of a command and wait for them.

    Raises:
        UserError: one of them was killed; the others were ended. `advice` says how to continue.
        SystemExit: a process failed and has already printed why.
    """
    _check(options)
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # it would tell all of this with tracebacks
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.devices)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ[processes.STARTED_HERE] = "1"
    try:
        elastic_launch(_configuration(options), sys.executable)("-m", "candapt", command, *arguments)
    except SignalException as error:
        if error.sigval != signal.SIGTERM:  # Ctrl-C reaches all processes, and the first one prints how to continue
            raise SystemExit(128 + int(error.sigval)) from None
        stopped = Interrupted(int(error.sigval))
        stopped.add_note(advice)
        raise stopped from None
    except ChildFailedError as error:
        _report([failure.exitcode for failure in error.failures.values()], advice)
    except (RendezvousError, DistError, ValueError) as error:  # the last one is of an address that is none
        reason = shortened(str(error) or type(error).__name__, 100)
        if options.rendezvous is None:
            raise UserError(f"The processes cannot meet on this machine ({reason}): check its network.") from None
        raise UserError(
            f"The machines did not meet at --rendezvous {shortened(options.rendezvous, 80)!r} ({reason}): give "
            f"HOST:PORT of one of them that all can reach, and start the command on {options.nodes} --nodes."
        ) from None


def _configuration(options: ProcessOptions) -> "LaunchConfig":
    """How many processes are started, and where they meet."""
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=options.nodes,
        max_nodes=options.nodes,
        nproc_per_node=options.devices,
        run_id="candapt",
        rdzv_backend="c10d",
        rdzv_endpoint=options.rendezvous or "localhost:0",
        rdzv_configs={"timeout": WAIT_SECONDS},
        max_restarts=0,
        monitor_interval=0.1,
    )


def _check(options: ProcessOptions) -> None:
    """Raise a `UserError` for what cannot be started."""
    cores = os.cpu_count() or 1
    if options.devices > (most := max(ALWAYS, PER_CORE * cores)):
        raise UserError(f"--devices is {options.devices}, but must be at most {most}: this machine has {cores} cores.")
    if options.nodes > 1 and options.rendezvous is None:
        raise UserError("--nodes needs --rendezvous HOST:PORT, the same on every machine, where they meet.")


def _report(codes: Sequence[int], advice: str) -> None:
    """Raise what tells why processes ended with these exit codes, of which one is not 0."""
    killed = [-code for code in codes if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT)]
    if killed:
        name = signal.Signals(killed[0]).name
        raise UserError(
            f"One of the processes was killed ({name}), and the others were ended: perhaps memory ran out, then use "
            f"fewer --devices; {advice}."
        )
    explained = [code for code in codes if code > 0 and code != LOST_CODE]  # with an error message of their own
    if not explained and LOST_CODE in codes:
        raise UserError(f"The processes lost their connection: check the machines and the network; {advice}.")
    raise SystemExit(explained[0] if explained else 1)
