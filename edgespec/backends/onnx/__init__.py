"""ONNX decoders on onnxruntime."""

from .model import OnnxModel as OnnxModel
from .model import all_providers as all_providers
from .model import check_packages as check_packages
from .model import identity as identity
from .model import ignores_gpu_layers as ignores_gpu_layers
from .model import inspect_metadata as inspect_metadata
from .model import open_model as open_model
from .model import supports_gpu_offload as supports_gpu_offload
from .model import versions as versions
from .model import vocabulary as vocabulary
