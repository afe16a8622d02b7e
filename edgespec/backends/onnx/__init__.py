"""ONNX decoders on onnxruntime: a `Backend`."""

from .head import OnnxHead as OnnxHead
from .head import open_head as open_head
from .head_facts import head_facts as head_facts
from .head_facts import target_sizes as target_sizes
from .head_folder import is_head as is_head
from .inspection import inspect_metadata as inspect_metadata
from .model import OnnxModel as OnnxModel
from .model import open_model as open_model
from .session import all_providers as all_providers
from .session import check_packages as check_packages
from .session import identity as identity
from .session import ignores_gpu_layers as ignores_gpu_layers
from .session import supports_gpu_offload as supports_gpu_offload
from .session import versions as versions
from .tokenizer import entries as entries
from .tokenizer import vocabulary as vocabulary
