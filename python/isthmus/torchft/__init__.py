"""Isthmus between the replica groups of torchft, which come and go: `pip install isthmus[torchft]`.

A script of torchft takes these two instead of torchft's own::

    from isthmus.torchft import Manager, ProcessGroupIsthmus

    manager = Manager(pg=ProcessGroupIsthmus(), ...)
"""

try:
    import torchft  # noqa: F401
except ImportError as error:
    raise ImportError(f"isthmus.torchft needs torchft ({error}): pip install 'isthmus[torchft]'") from error

from isthmus.torchft.group import ProcessGroupIsthmus
from isthmus.torchft.manager import Manager

__all__ = ["Manager", "ProcessGroupIsthmus"]
