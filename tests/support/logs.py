"""What Isthmus logs in a rank, where pytest's caplog is not."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect what is logged meanwhile, of this level and above; warnings also where a world logs errors alone."""
    messages: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("isthmus")
    before = logger.level
    quiet = before > logging.WARNING
    if quiet:
        logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        if quiet:
            logger.setLevel(before)
