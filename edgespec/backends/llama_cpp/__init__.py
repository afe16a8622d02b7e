"""GGUF models through the low-level API of llama-cpp-python."""

from .model import LlamaCppBatchedModel as LlamaCppBatchedModel
from .model import LlamaCppModel as LlamaCppModel
from .model import LlamaCppTokenizer as LlamaCppTokenizer
from .model import check_file as check_file
from .model import features as features
from .model import gpus as gpus
from .model import identity as identity
from .model import ignores_gpu_layers as ignores_gpu_layers
from .model import inspect_metadata as inspect_metadata
from .model import load_weights as load_weights
from .model import open_model as open_model
from .model import requantizable as requantizable
from .model import requantize as requantize
from .model import supports_gpu_offload as supports_gpu_offload
from .model import versions as versions
from .model import vocabulary as vocabulary
