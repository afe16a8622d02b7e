"""Published checkpoints of trained drafts, in the namings of the projects that train them."""

from .checkpoint import HeadCheckpoint as HeadCheckpoint
from .checkpoint import check_target as check_target
from .reading import read_head as read_head
