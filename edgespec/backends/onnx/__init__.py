"""A `Backend` for ONNX decoders on onnxruntime."""

from typing import TYPE_CHECKING

from ..defaults import can_requantize as can_requantize
from ..defaults import has_own_head as has_own_head
from ..defaults import requantizable as requantizable
from ..defaults import requantize as requantize
from .head import OnnxHead as OnnxHead
from .head import open_head as open_head
from .head_folder import head_facts as head_facts
from .head_folder import is_head as is_head
from .head_folder import target_sizes as target_sizes
from .inspection import inspect_metadata as inspect_metadata
from .inspection import projector_facts as projector_facts
from .model import OnnxModel as OnnxModel
from .model import open_model as open_model
from .model import published_sampling as published_sampling
from .session import all_providers as all_providers
from .session import check_packages as check_packages
from .session import gpus as gpus
from .session import identity as identity
from .session import ignores_gpu_layers as ignores_gpu_layers
from .session import supports_gpu_offload as supports_gpu_offload
from .session import versions as versions
from .tokenizer import entries as entries
from .tokenizer import vocabulary as vocabulary

if TYPE_CHECKING:
    from .. import base, onnx

    _: base.Backend = onnx  # mypy checks that the package has every function of a Backend
