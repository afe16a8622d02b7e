"""Quantised language models on your own device, made faster by lossless speculative decoding.

import edgespec

with edgespec.load("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", max_tokens=16).text)
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import convert as _package  # the package, before the function of the same name
from .config import (
    EngineConfig,
    RemoteConfig,
    RepetitionDetection,
    SamplingParams,
    SpeculativeConfig,
)
from .errors import (
    Aborted,
    BuildError,
    CannotTruncate,
    ConfigError,
    ContextFull,
    ConversionError,
    DecodeError,
    DownloadError,
    EdgeSpecError,
    EngineBusy,
    EngineMissing,
    ModelError,
    ModelNotFound,
    NotAGGUF,
    OutOfMemory,
    TemplateError,
    TruncatedModel,
    UnknownArchitecture,
    VerifierError,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    VocabularyMismatch,
)

if TYPE_CHECKING:
    from . import drafters, hub, policies
    from .backends.base import Capabilities, Model
    from .backends.toy import ToyModel, ToyTokenizer
    from .chat.chat import Chat
    from .chat.options import AnswerOptions
    from .chat.tools import Tool
    from .convert.conversion import Conversion, ConversionOptions, convert
    from .convert.heads.conversion import HeadConversion, convert_head
    from .convert.upgrade import add_hidden_states, add_tree_inputs
    from .engine import Engine
    from .loading.assembly import assemble
    from .loading.connect import connect
    from .loading.load import load
    from .measure.building import Built, build, remove_build
    from .measure.doctor import diagnose, diagnose_verifier
    from .measure.findings import Finding
    from .measure.formats import Format
    from .measure.head_inspection import HeadFacts, inspect_head
    from .measure.inspection import (
        DraftFit,
        ModelInfo,
        ProjectorFacts,
        fitting_drafts,
        inspect,
        inspect_projector,
    )
    from .measure.results import Candidate, Choice, Tuning
    from .measure.tuning import forget, tune
    from .pictures import Picture, picture
    from .sampling import rules
    from .train import kinds as train_kinds
    from .train.comparisons import Agreement, PairedDraft
    from .train.planning import TrainingPlan
    from .train.recordings import forget_training
    from .train.serving import ServedHead
    from .train.training import TrainedHead, check_head, plan_training, train_head
    from .types import (
        Completion,
        EngineStatus,
        Event,
        Logprob,
        Outputs,
        Part,
        RequestStatus,
        Stats,
        ToolCall,
    )

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Agreement",
    "AnswerOptions",
    "BuildError",
    "Built",
    "Candidate",
    "CannotTruncate",
    "Capabilities",
    "Chat",
    "Choice",
    "Completion",
    "ConfigError",
    "ContextFull",
    "Conversion",
    "ConversionError",
    "ConversionOptions",
    "DecodeError",
    "DownloadError",
    "DraftFit",
    "EdgeSpecError",
    "Engine",
    "EngineBusy",
    "EngineConfig",
    "EngineMissing",
    "EngineStatus",
    "Event",
    "Finding",
    "Format",
    "HeadConversion",
    "HeadFacts",
    "Logprob",
    "Model",
    "ModelError",
    "ModelInfo",
    "ModelNotFound",
    "NotAGGUF",
    "OutOfMemory",
    "Outputs",
    "PairedDraft",
    "Part",
    "Picture",
    "ProjectorFacts",
    "RemoteConfig",
    "RepetitionDetection",
    "RequestStatus",
    "SamplingParams",
    "ServedHead",
    "SpeculativeConfig",
    "Stats",
    "TemplateError",
    "Tool",
    "ToolCall",
    "ToyModel",
    "ToyTokenizer",
    "TrainedHead",
    "TrainingPlan",
    "TruncatedModel",
    "Tuning",
    "UnknownArchitecture",
    "VerifierError",
    "VerifierFault",
    "VerifierRefused",
    "VerifierUnavailable",
    "VocabularyMismatch",
    "__version__",
    "add_hidden_states",
    "add_tree_inputs",
    "assemble",
    "build",
    "check_head",
    "connect",
    "convert",
    "convert_head",
    "diagnose",
    "diagnose_verifier",
    "drafters",
    "fitting_drafts",
    "forget",
    "forget_training",
    "hub",
    "inspect",
    "inspect_head",
    "inspect_projector",
    "load",
    "picture",
    "plan_training",
    "policies",
    "remove_build",
    "rules",
    "train_head",
    "train_kinds",
    "tune",
]

_PACKAGES = {name: name for name in ("drafters", "hub", "policies")} | {
    "rules": "sampling.rules", "train_kinds": "train.kinds",
}  # fmt: skip
_HOMES = {  # modules are imported when a name is first used, which keeps `import edgespec` quick
    "backends.base": ("Capabilities", "Model"),
    "backends.toy": ("ToyModel", "ToyTokenizer"),
    "chat.chat": ("Chat",),
    "chat.options": ("AnswerOptions",),
    "chat.tools": ("Tool",),
    "convert.conversion": ("Conversion", "ConversionOptions", "convert"),
    "convert.heads.conversion": ("HeadConversion", "convert_head"),
    "convert.upgrade": ("add_hidden_states", "add_tree_inputs"),
    "engine": ("Engine",),
    "loading.assembly": ("assemble",),
    "loading.connect": ("connect",),
    "loading.load": ("load",),
    "measure.building": ("Built", "build", "remove_build"),
    "measure.doctor": ("diagnose", "diagnose_verifier"),
    "measure.findings": ("Finding",),
    "measure.formats": ("Format",),
    "measure.head_inspection": ("HeadFacts", "inspect_head"),
    "measure.inspection": (
        "DraftFit",
        "ModelInfo",
        "ProjectorFacts",
        "fitting_drafts",
        "inspect",
        "inspect_projector",
    ),
    "measure.results": ("Candidate", "Choice", "Tuning"),
    "measure.tuning": ("forget", "tune"),
    "pictures": ("Picture", "picture"),
    "train.comparisons": ("Agreement", "PairedDraft"),
    "train.planning": ("TrainingPlan",),
    "train.recordings": ("forget_training",),
    "train.serving": ("ServedHead",),
    "train.training": ("TrainedHead", "check_head", "plan_training", "train_head"),
    "types": (
        "Completion",
        "EngineStatus",
        "Event",
        "Logprob",
        "Outputs",
        "Part",
        "RequestStatus",
        "Stats",
        "ToolCall",
    ),
}

del convert, _package


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f".{_PACKAGES[name]}", __name__)
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
