"""A table of what bad input prints: every case is run through the real command line.

python -m benchmarks.bad_input > docs/reference/errors.md
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import model
from tests.helpers import onnx_models

SOURCE = model("smollm2-135m")


def files(folder: Path) -> None:
    """Make the bad files from a good one."""
    data = SOURCE.read_bytes()
    shutil.copy(SOURCE, folder / "good.gguf")
    (folder / "photo.gguf").write_bytes(b"\x89PNG\r\n\x1a\n not a model")
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "header.gguf").write_bytes(data[:100])
    (folder / "half.gguf").write_bytes(data[: len(data) // 2])
    old = struct.pack("<Q", 5) + b"llama"
    (folder / "odd.gguf").write_bytes(data.replace(old, struct.pack("<Q", 5) + b"lorem", 1))
    (folder / "long.txt").write_text("one two three " * 400)
    other = model("gemma-3-270m")
    (folder / "gemma.gguf").symlink_to(other)
    (folder / "bad").mkdir()
    (folder / "bad/photo.onnx").write_bytes(b"\x89PNG\r\n\x1a\n not a graph")
    onnx_models.save(folder / "twin")
    onnx_models.save(folder / "bare")
    (folder / "bare/tokenizer.json").unlink()


CASES = [
    ("no such file", "run -m absent.gguf hello", ""),
    ("a directory", "run -m . hello", ""),
    ("no such catalogue name", "run -m qwen3-4x hello", ""),
    ("known, not on disk, offline", "run -m qwen3-4b --offline hello", ""),
    ("not a GGUF", "run -m photo.gguf hello", ""),
    ("empty file", "run -m empty.gguf hello", ""),
    ("damaged header", "run -m header.gguf hello", ""),
    ("truncated GGUF", "run -m half.gguf hello", ""),
    ("unknown architecture", "run -m odd.gguf hello", ""),
    ("context larger than memory", "run -m good.gguf -c 2000000000 hello", ""),
    ("prompt longer than the context", "run -m good.gguf -c 512 -f long.txt", ""),
    ("draft of another family", "run -m gemma.gguf -md good.gguf --raw hello", ""),
    ("draft method without a draft", "run -m good.gguf --spec-type draft-model hello", ""),
    ("draft named, plain asked for", "run -m good.gguf --spec-type none -md good.gguf hello", ""),
    ("unknown method", "run -m good.gguf --spec-type magic hello", ""),
    ("impossible sampling", "run -m good.gguf --top-p 3 hello", ""),
    ("not a number", "run -m good.gguf --temp warm hello", ""),
    ("bias of no token", "run -m good.gguf --logit-bias 999999=1 hello", ""),
    ("token id out of range", "run -m good.gguf --prompt-ids 1,999999", ""),
    ("no prompt", "run -m good.gguf", ""),
    ("empty prompt", "run -m good.gguf --raw", "\n"),
    ("unreadable prompt file", "run -m good.gguf -f absent.txt", ""),
    ("unknown option", "run -m good.gguf --temprature 1 hello", ""),
    ("unknown command", "chatt", ""),
    ("unknown chat command", "chat -m good.gguf", "/sing\n"),
    ("load of no chat", "chat -m good.gguf", "/load good.gguf\n"),
    ("saved to no folder", "chat -m good.gguf", "/save no/such/chat.json\n"),
    ("saved over a folder", "chat -m good.gguf", "/save! bad\n"),
    ("inspect of no GGUF", "inspect photo.gguf", ""),
    ("least draft above the most",
     "run -m good.gguf --spec-draft-n-min 5 --spec-draft-n-max 2 hello", ""),
    ("cache that needs flash attention", "run -m good.gguf -fa off -ctv q8_0 hello", ""),
    ("draft for no target", "doctor -md good.gguf", ""),
    ("benchmark of nothing", "bench -m good.gguf --no-edge", ""),
    ("picture to no folder", "bench -m good.gguf --plot no/such.png", ""),
    ("no recorded answers", "bench replay --traces good.gguf", ""),
    ("no graph", "run -m bad/photo.onnx hello", ""),
    ("a graph without its tokenizer", "run -m bare/model.onnx hello", ""),
    ("unknown provider", "run -m twin/model.onnx --provider cudaa hello", ""),
    ("provider that is not there", "run -m twin/model.onnx --provider cuda hello", ""),
    ("an option without effect", "run --verifier ws://127.0.0.1:9 --acceptance block hello", ""),
    ("option before its command", "bench -m good.gguf replay", ""),
    ("no server there", "run --verifier ws://127.0.0.1:9 -md good.gguf hello", ""),
    ("no such kind of server", "run --verifier triton+http://127.0.0.1:9 -md good.gguf hello", ""),
    ("no address of a verifier", "run --verifier 127.0.0.1:9 -md good.gguf hello", ""),
    ("unguarded server", "serve -m good.gguf --host 0.0.0.0", ""),
    ("no address to listen at", "serve -m good.gguf --insecure --host 192.0.2.1", ""),
    ("pull of an unknown name", "pull gpt-9", ""),
]  # fmt: skip

HEAD = """# Errors

Every error is one line on standard error that says what was found and what to do. This table shows
what typical wrong input prints. `python -m benchmarks.bad_input > docs/reference/errors.md`
makes it; the exception classes are in the [Python reference](python.md#errors).
"""


def main() -> None:
    print(HEAD)
    print("| case | command | exit | printed on standard error |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files(folder)
        environment = os.environ | {"EDGESPEC_MODELS": str(folder / "store"), "COLUMNS": "300"}
        for case, command, stdin in CASES:
            done = subprocess.run(
                [sys.executable, "-m", "edgespec_cli", *command.split()], cwd=folder,
                input=stdin, capture_output=True, text=True, env=environment, check=False,
            )  # fmt: skip
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            text = (
                " ⏎ ".join(said).replace("|", "\\|").replace("<", "&lt;").replace(str(folder), "…")
            )
            shown = f"`edgespec {command}`" + (f" < `{stdin.strip()}`" if stdin.strip() else "")
            print(f"| {case} | {shown} | {done.returncode} | {text} |")


if __name__ == "__main__":
    main()
