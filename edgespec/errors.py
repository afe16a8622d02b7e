"""The exceptions that edgespec raises on purpose.

    EdgeSpecError
    ├── ConfigError                  an option that is unknown, out of range or contradictory
    ├── ModelError
    │   ├── ModelNotFound            no such file, catalogue name or hub file
    │   ├── DownloadError            a source could not be reached or sent the wrong bytes
    │   ├── NotAGGUF                 the file is something else
    │   ├── TruncatedModel           the file ends before its tensors do
    │   ├── UnknownArchitecture      this build of the engine cannot run the model
    │   ├── OutOfMemory              weights or cache do not fit
    │   └── ConversionError          a model could not be converted
    ├── BuildError                   llama.cpp could not be compiled here
    ├── EngineMissing                the package of an engine is not installed
    ├── VocabularyMismatch           draft and target do not share token ids
    ├── ContextFull                  more tokens than the context holds
    ├── CannotTruncate               the engine cannot drop the tail of its memory
    ├── DecodeError                  the engine failed while evaluating tokens
    ├── Aborted                      evaluation was stopped by the caller
    ├── TemplateError                a chat template that does not render
    ├── VerifierError
    │   ├── VerifierUnavailable      a server cannot be reached, went away, or is full now
    │   ├── VerifierRefused          a server refused the key, model, vocabulary or request
    │   └── VerifierFault            a server's answer makes no sense
    └── EngineBusy                   a request that finds no free slot, and must not wait

Every message says what was found, what was expected and what to do.
"""

from __future__ import annotations


class EdgeSpecError(Exception):
    """The base class of all errors that edgespec raises on purpose."""


class ConfigError(EdgeSpecError, ValueError):
    """An option is unknown, out of range or contradictory."""


class ModelError(EdgeSpecError):
    """A model cannot be found, read or loaded."""


class ModelNotFound(ModelError):
    """There is no such file, catalogue name or hub file."""


class DownloadError(ModelError):
    """A source could not be reached or sent the wrong bytes."""


class NotAGGUF(ModelError):
    """The file is not a GGUF."""


class TruncatedModel(ModelError):
    """The file ends before its tensors do, or its header is damaged."""


class UnknownArchitecture(ModelError):
    """The model has an architecture that this build of the engine cannot run."""


class OutOfMemory(ModelError):
    """Weights, cache or work space do not fit."""


class ConversionError(ModelError):
    """A model could not be converted, or the result is too far from its source."""


class BuildError(EdgeSpecError):
    """llama.cpp could not be compiled here, or the result computes something else."""


class EngineMissing(EdgeSpecError):
    """The package of an engine is not installed."""


class VocabularyMismatch(EdgeSpecError):
    """Draft and target do not share token ids."""


class ContextFull(EdgeSpecError):
    """There are more tokens than the context holds."""


class CannotTruncate(EdgeSpecError):
    """The engine cannot drop the tail of its memory."""


class DecodeError(EdgeSpecError):
    """The engine failed while evaluating tokens."""


class Aborted(EdgeSpecError):
    """Evaluation was stopped by the caller; the model's `n_past` tells how far it got."""


class TemplateError(EdgeSpecError):
    """A chat template cannot be rendered.

    index: the number of the message that the template refuses, None if no message is to blame.
    """

    index: int | None = None


class VerifierError(EdgeSpecError):
    """Verification on another machine failed; the conversation is unchanged."""


class VerifierUnavailable(VerifierError):
    """A server cannot be reached, went away, or is full; trying again may help.

    retry_after_s: seconds to wait before trying again, None if the server did not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class VerifierRefused(VerifierError):
    """A server refused a key, a model, a vocabulary, or a request that it cannot do losslessly.

    Trying again does not help.
    """


class VerifierFault(VerifierError):
    """A server sent an answer that does not fit the request."""


class EngineBusy(EdgeSpecError):
    """A request found no free slot, and must not wait for one: see `on_busy` of EngineConfig."""
