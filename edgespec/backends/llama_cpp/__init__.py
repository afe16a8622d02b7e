"""GGUF models through llama.cpp's library, libllama: a `Backend` that may requantise."""

from .batched import LlamaCppBatchedModel as LlamaCppBatchedModel
from .head import LlamaCppHead as LlamaCppHead
from .head_facts import head_facts as head_facts
from .head_facts import target_sizes as target_sizes
from .head_files import is_head as is_head
from .heads import open_head as open_head
from .inspection import entries as entries
from .inspection import identity as identity
from .inspection import inspect_metadata as inspect_metadata
from .inspection import requantizable as requantizable
from .library import can_requantize as can_requantize
from .library import engine as engine
from .library import features as features
from .library import gpus as gpus
from .library import ignores_gpu_layers as ignores_gpu_layers
from .library import supports_gpu_offload as supports_gpu_offload
from .library import versions as versions
from .metadata import check_file as check_file
from .model import LlamaCppModel as LlamaCppModel
from .model import open_model as open_model
from .model import published_sampling as published_sampling
from .nextn import has_own_head as has_own_head
from .tokenizer import LlamaCppTokenizer as LlamaCppTokenizer
from .tokenizer import vocabulary as vocabulary
from .weights import load_weights as load_weights
from .weights import requantize as requantize
