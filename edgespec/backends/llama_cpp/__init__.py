"""A `Backend` for GGUF models on libllama, llama.cpp's library. Some builds can also requantise."""

from typing import TYPE_CHECKING

from .batched import LlamaCppBatchedModel as LlamaCppBatchedModel
from .devices import Gpu as Gpu
from .devices import all_gpus as all_gpus
from .devices import chosen as chosen
from .devices import gpus as gpus
from .devices import ignores_gpu_layers as ignores_gpu_layers
from .devices import unused_gpu as unused_gpu
from .head import LlamaCppHead as LlamaCppHead
from .head_facts import head_facts as head_facts
from .head_facts import is_head as is_head
from .head_facts import target_sizes as target_sizes
from .heads import open_head as open_head
from .inspection import entries as entries
from .inspection import identity as identity
from .inspection import inspect_metadata as inspect_metadata
from .inspection import requantizable as requantizable
from .library import can_requantize as can_requantize
from .library import engine as engine
from .library import features as features
from .library import is_fork as is_fork
from .library import versions as versions
from .model import LlamaCppModel as LlamaCppModel
from .model import open_model as open_model
from .model import published_sampling as published_sampling
from .nextn import has_own_head as has_own_head
from .projectors import projector_facts as projector_facts
from .search import first as first
from .tokenizer import LlamaCppTokenizer as LlamaCppTokenizer
from .tokenizer import vocabulary as vocabulary
from .weights import load_weights as load_weights
from .weights import requantize as requantize

if TYPE_CHECKING:
    from .. import base, llama_cpp

    _: base.Backend = llama_cpp  # mypy checks that the package has every function of a Backend
