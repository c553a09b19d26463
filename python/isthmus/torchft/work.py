"""The Work of a reduction that its manager makes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist


class ManagedWork(dist.Work):
    """A Work that never raises: torchft's hook for DDP takes no exception, and asks `errored` before it commits.

    work: what is waited for; None: the call failed at once. tensors: what is reduced, unspecified after an error.
    """

    def __init__(
        self, work: dist.Work | None, tensors: list[torch.Tensor], report_error: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._report_error = report_error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the reduction is done or has failed; if it takes longer than `timeout`, it has failed, too."""
        try:
            if self._work is not None and not (self._work.wait(timeout) if timeout else self._work.wait()):
                raise TimeoutError(f"isthmus: the reduction was not done within {timeout}")
        except Exception as error:
            self._report_error(error)
        return True

    def block_current_stream(self) -> None:
        """Make the current stream wait."""
        if self._work is not None:
            self._work.block_current_stream()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors."""
        if self._work is None:
            done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            done.set_result(self._tensors)
            return done
        return self._work.get_future().then(self._value)

    def _value(self, future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        try:
            future.value()
        except Exception as error:
            self._report_error(error)
        return self._tensors
