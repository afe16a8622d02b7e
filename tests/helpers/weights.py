"""Where tests and benchmarks look for real weights."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))
