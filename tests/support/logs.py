"""What Isthmus logs in a rank, where pytest's caplog is not."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect what is logged meanwhile, of this level and above."""
    messages: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("isthmus").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("isthmus").removeHandler(handler)
