"""GGUF heads and models that somebody made to do harm: each works or is refused in a sentence, and
none ends the process or makes it wait.
"""

import contextlib
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edgespec import ConfigError, DecodeError, ModelError
from tests.helpers import hostile, tiny_dflash, tiny_gemma4, tiny_heads, tiny_models, tiny_mtp
from tests.helpers.llama_heads import CONFIG, TEXT, OtherEngine, llama_cpp
from tests.helpers.selection import every, share

pytestmark = pytest.mark.llama_cpp

MTP = sorted({architecture for architecture, _ in tiny_mtp.KINDS})
MODELS = ["llama", "qwen2", "qwen3", "gemma3"]
KINDS = ["eagle3", "dflash", "assistant", *MTP, *MODELS]


def contents(kind):
    """Return the metadata and the weights of a sound head or model."""
    if kind == "eagle3":
        return tiny_heads.head_metadata(), tiny_heads.head_weights()
    if kind == "dflash":
        return tiny_dflash.dflash_metadata(), tiny_dflash.dflash_weights()
    if kind == "assistant":
        return tiny_gemma4.assistant_metadata(), tiny_gemma4.assistant_weights()
    if kind in MODELS:
        return tiny_models.metadata(kind), tiny_models.weights(kind)
    return tiny_mtp.mtp_metadata(kind), tiny_mtp.mtp_weights(kind)


def use(path, target):
    """Do with a file what edgespec does with it. target: of a head, None for a model."""
    if target is None:
        with contextlib.closing(llama_cpp.LlamaCppModel(path, CONFIG)) as model:
            model.decode(TEXT)
        return
    llama_cpp.is_head(path)
    llama_cpp.head_facts(path)
    llama_cpp.target_sizes(path)
    llama_cpp.inspect_metadata(path)
    head = llama_cpp.open_head(path, CONFIG, target)
    try:
        head.decode(TEXT)
        head.grow([4], [-1])
    finally:
        head.close()


def try_all(folder, kind, n):
    """Use n mutations of a file; print the number of each, and what is no sentence."""
    target = None if kind in MODELS else OtherEngine()
    if kind == "assistant":
        target = llama_cpp.LlamaCppModel(tiny_gemma4.write_target(folder), CONFIG)
    sound, path = contents(kind), folder / "head.gguf"
    path.write_bytes(hostile.gguf_bytes(*sound))
    use(path, target)
    for seed in range(n):
        print(seed, file=sys.stderr, flush=True)
        path.write_bytes(hostile.gguf(*sound, random.Random(seed)))
        try:
            use(path, target)
        except (ModelError, ConfigError, DecodeError) as error:
            if len(str(error)) > 700 or not str(error).isprintable():
                print(seed, repr(str(error)[:400]))
    print("lives")


@pytest.mark.parametrize("kind", every(3, KINDS, "more kinds of files"))
def test_nothing_ends_the_process(tmp_path, kind):
    program = f"""
        from pathlib import Path
        from tests.unit.backends.test_hostile_heads import try_all
        try_all(Path({str(tmp_path)!r}), {kind!r}, {share(300)})
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "lives\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links of POSIX")
@pytest.mark.parametrize("seed", range(8))
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, seed):
    path = tmp_path / "head.gguf"
    hostile.take_the_place_of(path, random.Random(seed))
    with pytest.raises(ModelError, match="cannot read"):
        use(Path(path), OtherEngine())
