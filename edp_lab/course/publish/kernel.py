"""The papermill engine of the course: a notebook's own Python, and no error that a widget can hide.

papermill looks for errors in the outputs of cells. ipywidgets puts the error of a callback elsewhere:
``interact``, ``interactive_output`` and ``with Output():`` move it into a widget's state, the next call may
clear it, a panel shows it in its error box, a thread prints it on stderr, perhaps while a later cell runs. This
engine listens to all the kernel's messages, writes such an error into the outputs of the running cell, and stops.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from tempfile import mkdtemp
from typing import Any

import psutil
import zmq
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.localinterfaces import localhost
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output, output_from_msg
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import Type, Unicode, default

ENGINE = "edp-lab"
ERROR_CLASS = "edp-lab-error"  # the CSS class of a widget whose non-empty ``value`` is an error message
STILLS = "application/vnd.edp-lab.stills+json"
LOOK_AGAIN = 0.2  # seconds
TRACEBACK = "Traceback (most recent call last)"

AT_THE_END = f"""# after the last cell
import sys
if "plotly" in sys.modules and "ipywidgets" in sys.modules:
    from IPython.display import display
    from edp_lab.course.publish.panel_driver import stills
    display({{"{STILLS}": stills()}}, raw=True)
"""


class Watch:
    """Follows one kernel with all its child processes, and can end it.

    Args:
        on_cell: is told, before each cell, how many cells are behind it and how many there are.
    """

    def __init__(self, on_cell: Callable[[int, int], None] = lambda done, of: None) -> None:
        self.on_cell, self.killed = on_cell, False
        # The most resident memory that the kernel and its children held together, in 10^6 bytes, looked at five times a
        # second. Pages that processes share count once for each of them.
        self.memory_mb = 0.0
        self._kernel: psutil.Process | None = None

    def follow(self, pid: int) -> None:
        """Look at the memory of this kernel until it ends."""
        self._kernel = psutil.Process(pid)
        threading.Thread(target=self._sample, daemon=True).start()
        if self.killed:  # while the kernel was starting
            self.kill()

    def kill(self) -> None:
        """End the kernel and its children at once; a kernel that is still to come ends as soon as it is followed."""
        self.killed = True
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _processes(self) -> list[psutil.Process]:
        """The children, and last the kernel itself."""
        if self._kernel is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [*self._kernel.children(recursive=True), self._kernel]
        return []

    def _sample(self) -> None:
        while processes := self._processes():
            held = 0
            for process in processes:
                with suppress(psutil.NoSuchProcess):  # ended since we asked
                    held += process.memory_info().rss
            self.memory_mb = max(self.memory_mb, held / 1e6)
            time.sleep(LOOK_AGAIN)


class _Shell(AsyncZMQSocketChannel):
    """The channel of requests and replies; looks for them again and again instead of trusting that it is woken.

    nbclient answers an Output widget on this channel while it waits here for the cell's reply. A send can swallow
    the wake-up of a reply that comes in at that moment (ZeroMQ's are edge-triggered): about one cell in fifty with
    an Output widget then stood still until its timeout.
    """

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:  # type: ignore[override]
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await super().get_msg(max(0, min(LOOK_AGAIN, deadline - time.monotonic())))
            except Empty:
                if time.monotonic() >= deadline:
                    raise


class _Broadcast(AsyncZMQSocketChannel):
    """The channel of outputs and widget states; hears every error, whichever cell or widget it belongs to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.errors: list[NotebookNode] = []
        self.error_boxes: set[str] = set()
        self.stderr = ""

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:  # type: ignore[override]
        msg = await super().get_msg(timeout)
        kind, content = msg["msg_type"], msg["content"]
        if kind == "error":
            self.errors.append(output_from_msg(msg))
        elif kind == "stream" and content["name"] == "stderr":
            self.stderr += content["text"]
        elif kind in ("comm_open", "comm_msg"):
            state = content["data"].get("state", {})
            if ERROR_CLASS in state.get("_dom_classes", ()):
                self.error_boxes.add(content["comm_id"])
            told = state.get("error") or (content["comm_id"] in self.error_boxes and state.get("value"))
            if told:  # under a control, or in the panel's own place for errors
                self.errors.append(_error("PanelError", told))
        return msg

    def take_errors(self) -> list[NotebookNode]:
        """What was heard since the last call."""
        errors = self.errors
        if TRACEBACK in self.stderr:
            errors.append(_error("error on stderr", self.stderr.strip().splitlines()[-1]))
        self.errors, self.stderr = [], ""
        return errors


class _KernelClient(AsyncKernelClient):
    shell_channel_class = Type(_Shell)
    iopub_channel_class = Type(_Broadcast)


class KernelManager(AsyncKernelManager):
    """Starts ``python3`` with this very interpreter, whatever kernels the machine has under that name."""

    client_factory = Type(_KernelClient)
    # Ports are chosen before the kernel binds them: two that start in the same moment can be given the same.
    transport = Unicode("ipc" if os.name == "posix" else "tcp")
    transport_encryption = Unicode("auto" if zmq.has("curve") else "disabled")
    busy = False  # a cell is running

    @default("kernel_spec_manager")
    def _no_installed_kernels(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])

    @default("ip")
    def _sockets(self) -> str:
        if self.transport == "tcp":
            return localhost()
        folder = mkdtemp(prefix="edp-lab-")  # readable by its owner only; a socket's path has 104 characters at most
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return os.path.join(folder, "kernel")

    async def _async_interrupt_kernel(self) -> None:
        """Of a kernel that is busy: before its shutdown every kernel would be, and an idle one reports an error."""
        if self.busy:
            await super()._async_interrupt_kernel()


class _Client(PapermillNotebookClient):
    """papermill's client, which also stops at the errors that widgets and threads hide."""

    watch: Watch

    def execute_cell(self, cell: NotebookNode, cell_index: int, **kwargs: Any) -> NotebookNode:
        self.watch.on_cell(cell_index, len(self.nb.cells))
        if cell.cell_type != "code":
            return cell
        failure = None
        try:
            super().execute_cell(cell, cell_index, **kwargs)
        except CellExecutionError as exception:
            failure = exception
        except CellTimeoutError:
            cell.outputs.append(_error("TimeoutError", f"the cell took longer than {self.timeout:g} s"))
            self.km.busy = True
            run_sync(self.km.shutdown_kernel)(now=True)
        except DeadKernelError:
            cell.outputs.append(_error("DeadKernelError", "the kernel died (out of memory?)"))
        cell.outputs.extend(error for error in self.kc.iopub_channel.take_errors() if error not in cell.outputs)
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if failure or errors:
            raise failure or CellExecutionError("\n".join(errors[0].traceback), errors[0].ename, errors[0].evalue)
        return cell

    def papermill_execute_cells(self) -> None:
        self.watch.follow(self.km.provisioner.pid)
        super().papermill_execute_cells()
        if any(cell.metadata.papermill.get("exception") for cell in self.nb.cells):
            return
        end = new_code_cell(AT_THE_END, metadata={"papermill": {"status": "completed"}})
        self.nb.cells.append(end)
        with suppress(CellExecutionError):  # the cell stays, with the error that came late
            self.execute_cell(end, len(self.nb.cells) - 1)
            self.nb.cells.pop()
            for output in end.outputs:
                self.nb.metadata["stills"] = output.data[STILLS]


class _Engine(NBClientEngine):
    """Takes, through `papermill.execute_notebook`: `folder` (where the notebook runs), `environment` (added to the
    kernel's) and `watch`. papermill's own `cwd` would move this whole process, and with it a notebook beside."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **kwargs: Any) -> NotebookNode:
        client = _Client(
            nb_man,
            kernel_name=kernel_name,
            kernel_manager_class=KernelManager,
            timeout=kwargs["execution_timeout"],
            startup_timeout=kwargs["start_timeout"],
            shell_timeout_interval=1,  # seconds until a dead kernel is noticed
        )
        client.watch = kwargs["watch"]
        save, nb_man.save = nb_man.save, lambda **_: None  # the whole notebook twice a cell: a third of a run's time
        try:
            return client.execute(cwd=str(kwargs["folder"]), env={**os.environ, **kwargs["environment"]})
        finally:
            nb_man.save = save


def _error(name: str, value: str) -> NotebookNode:
    return new_output("error", ename=name, evalue=value, traceback=[f"{name}: {value}"])


papermill_engines.register(ENGINE, _Engine)
