"""Build the sdist and the wheel, check what is in them, and use the wheel as a stranger would.

Needs the extra dev, and SmolLM2 in $EDGESPEC_MODELS or a network.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

import edgespec

ROOT = Path(__file__).resolve().parents[1]
WHEEL = {"edgespec": "edgespec", "cli/edgespec_cli": "edgespec_cli", "models": "edgespec_models"}
SDIST = ("android_demo", "benchmarks", "cli", "deploy", "docs", "edgespec", "models", "tests")
PROMPT = "The capital of France is"


def main() -> None:
    """Build, check and use both packages; an error ends the program."""
    with tempfile.TemporaryDirectory() as scratch:
        dist = Path(scratch, "dist")
        run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
        (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
        check_sdist(sdist)
        check_wheel(wheel)
        use(wheel, Path(scratch))


def run(*command: object, **options: object) -> str:
    """Return what a command printed; its errors go to stderr, and a failure ends the program."""
    print("+", *command, flush=True)
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}exit status {done.returncode}")
    return done.stdout


def files(folder: str) -> set[str]:
    """Return the files of a folder in the checkout, without what was made there."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        path.as_posix()
        for path in found
        if path.suffix != ".pyc" and path.parts[:2] != ("android_demo", "build")
    }


def same(what: str, found: set[str], expected: set[str]) -> None:
    """End the program unless both sets are the same."""
    if found != expected:
        sys.exit(f"{what} lacks {sorted(expected - found)} and has also {sorted(found - expected)}")


def check_sdist(sdist: Path) -> None:
    """Check that the sdist has every file of the folders that it should have."""
    with tarfile.open(sdist) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    expected = set().union(*map(files, SDIST))
    same("the sdist", {name for name in names if name.partition("/")[0] in SDIST}, expected)


def check_wheel(wheel: Path) -> None:
    """Check the files of the wheel (no tests, no demo), its version and what it installs."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (info,) = {name.partition("/")[0] for name in archive.namelist()} - set(WHEEL.values())
        metadata = Metadata.from_email(archive.read(f"{info}/METADATA"), validate=True)
        entries = archive.read(f"{info}/entry_points.txt").decode()
    expected = {
        installed + name.removeprefix(folder)
        for folder, installed in WHEEL.items()
        for name in files(folder)
    }
    same("the wheel", names, expected)
    assert str(metadata.version) == edgespec.__version__, metadata.version
    assert entries.split() == ["[console_scripts]", "edgespec", "=", "edgespec_cli.__main__:main"]


def use(wheel: Path, scratch: Path) -> None:
    """Install the wheel without pip or a compiler on the way, as uvx does, and ask a question."""
    env = scratch / "env"
    venv.create(env, with_pip=False)
    kept = ("PIP_", "SSL_", "EDGESPEC_MODELS")
    environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    environment |= {"PATH": f"{env}/bin", "HOME": str(scratch)}
    alone = {"env": environment, "cwd": scratch}
    pip = (sys.executable, "-m", "pip", "-q", "--python", f"{env}/bin/python")
    run(*pip, "install", wheel, **alone)
    program = f"{env}/bin/edgespec"
    assert run(program, "--version", **alone) == f"edgespec {edgespec.__version__}\n"
    assert "smollm2-135m" in run(program, "models", **alone)
    assert "Paris" in run(program, "run", "--raw", "-n", "4", PROMPT, **alone)


if __name__ == "__main__":
    main()
