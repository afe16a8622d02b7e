"""Reads published checkpoints of trained drafts, with the names that each project gives tensors."""

from .checkpoint import HeadCheckpoint as HeadCheckpoint
from .checkpoint import check_target as check_target
from .reading import read_head as read_head
