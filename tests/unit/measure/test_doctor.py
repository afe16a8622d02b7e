"""The doctor: what it finds on machines, models and drafts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import edgespec
from edgespec import ConfigError, EngineConfig, device
from edgespec.backends.compiled import Chosen
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.measure import doctor, draft_checks, machine_checks, model_checks
from edgespec.measure.draft_checks import check_cost
from edgespec.measure.engine_checks import libllama_finding
from edgespec.measure.findings import Finding
from edgespec.measure.machine_checks import check_gpu, check_memory, check_pages
from edgespec.measure.model_checks import check_temperature
from tests.helpers import libllama
from tests.unit.cache import test_prefixes

FLAT = Curve((64,), (1, 32), ((0.1, 0.1),))
HALF = Curve((64,), (1, 32), ((0.1, 1.65),))  # each further token costs half of one


def test_the_doctor_sees_other_programs(busy_machine):
    libllama.require()
    load = next(f for f in edgespec.diagnose() if f.subject == "load")
    assert load.level == "note"
    assert "other programs use 1.5 cores" in load.text


def test_the_doctor_looks_at_the_machine():
    libllama.require()
    findings = edgespec.diagnose()
    subjects = [f.subject for f in findings if f.subject not in ("onnxruntime", "pages", "model")]
    assert subjects == [
        "processor", "memory", "versions", "drafters", "libllama", "GPU", "profiles", "prompts",
    ]  # fmt: skip
    with pytest.raises(ConfigError):
        edgespec.diagnose(temperature=-1)
    with pytest.raises(ConfigError, match="fish"):
        edgespec.diagnose(fish=1)


def test_the_doctor_names_the_library_and_what_compiling_it_gains():
    modern = frozenset({"avx2", "avx512f", "avx512_vnni", "amx_int8"})
    ready = libllama_finding("xllamacpp 2026.10", ["AVX2", "FMA"], False, modern)
    assert ready.level == "note"
    assert "xllamacpp 2026.10, with AVX2 FMA; it makes no faster copies" in ready.text
    for words in ("`edgespec build`", "AVX-512, AVX-512 VNNI", "copies of draft models"):
        assert words in ready.remedy
    assert "AMX" not in ready.remedy
    full = ["AVX2", "AVX512", "AVX512_VNNI"]
    other = libllama_finding("llama-cpp-python 0.3", full, True, modern)
    assert (other.level, other.remedy) == ("ok", "")
    old = libllama_finding("xllamacpp 2026.10", ["AVX2"], False, frozenset({"avx2"}))
    assert "AVX-512" not in old.remedy
    oldest = libllama_finding("xllamacpp 2026.10", ["SSE3"], False, frozenset({"avx2"}))
    assert "uses this processor's AVX2 and makes" in oldest.remedy
    arm = libllama_finding("libllama 0.5", ["NEON"], True, frozenset({"asimddp", "i8mm"}))
    assert "dot products, products of int8 matrices" in arm.remedy


def test_the_doctor_gives_a_speed_only_where_both_libraries_were_measured():
    times = {"a.gguf": {"1": [79.4, 70.2], "4": [146.0, 104.0]}}
    chosen = Chosen(path="libllama.so", arguments=[], times=times)
    found = libllama_finding("llama-cpp-python", [], True, frozenset({"avx512f"}), chosen)
    assert (found.level, found.remedy) == ("ok", "")
    assert "tokens of a.gguf: 1 in 79 → 70 ms, 4 in 146 → 104 ms" in found.text
    assert "%" not in libllama_finding("x", [], False, frozenset({"avx512f"})).remedy


def test_the_doctor_counts_layers():
    info = edgespec.ModelInfo("m.gguf", "llama", "m", "Q8_0", 1000, 64, 8, 1, 1, 4, 4, False)
    for n, said in ((1, ", 1 layer"), (2, ", 2 layers")):
        assert model_checks._check_file(replace(info, n_layer=n)).text.endswith(said)


def test_beside_other_programs_no_number_of_threads_is_advised():
    advice = Finding("problem", "threads", "2 threads 400 ms, with 1 60 ms", "give -t 1")
    found = doctor._less_certain(advice)
    assert (found.level, "-t 1" in found.remedy) == ("note", False)
    assert "by itself" in found.remedy
    assert doctor._less_certain(replace(advice, remedy="")).remedy == ""


def test_the_doctor_on_graphics_cards(monkeypatch):
    """Only what is said of them; which are used is decided in `gpus`."""
    llama_cpp = pytest.importorskip("edgespec.backends.llama_cpp")
    orin = llama_cpp.Gpu("CUDA0", "Orin", 1 << 30, 2 << 30, True, None)
    for used, unused, seen, level, words in (
        ([], None, [], "ok", "none is seen here"),
        (
            [orin],
            None,
            [],
            "ok",
            "go on Orin (CUDA0, 1.0 GiB of 2.0 GiB of the CPU's memory",
        ),
        ([], ("nothing uses it", "install this"), ["Intel"], "note", "nothing uses it"),
        ([], ("nothing uses it", "install this"), ["NVIDIA"], "problem", "nothing uses it"),
    ):
        monkeypatch.setattr(llama_cpp, "chosen", lambda config, used=used: used)
        monkeypatch.setattr(llama_cpp, "unused_gpu", lambda tune, unused=unused: unused)
        monkeypatch.setattr(machine_checks, "seen_gpus", lambda seen=seen: seen)
        (finding,) = check_gpu("tune")
        assert (finding.level, finding.remedy) == (level, unused[1] if unused else "")
        assert words in finding.text


@pytest.mark.parametrize(("libc", "pages", "tunables", "lacks"), [
    (("glibc", "2.36"), "always [madvise] never", "", True),
    (("glibc", "2.36"), "always [madvise] never", "glibc.malloc.hugetlb=1", False),
    (("glibc", "2.36"), "[always] madvise never", "", False),
    (("glibc", "2.31"), "always [madvise] never", "", False),
    (("", ""), "always [madvise] never", "", False),
    (("glibc", "2."), "always [madvise] never", "", False),
    (("glibc", "2.31-0ubuntu9"), "always [madvise] never", "", False),
    (("glibc", "2.36-9+deb12"), "always [madvise] never", "", True),
    (("musl", "1.2.5"), "always [madvise] never", "", False),
    (("glibc", "2.36"), None, "", False),
])  # fmt: skip
def test_the_doctor_on_huge_pages(tmp_path, monkeypatch, libc, pages, tunables, lacks):
    file = tmp_path / "enabled"
    if pages:
        file.write_text(pages)
    monkeypatch.setattr(device, "_PAGES", file)
    monkeypatch.setattr(device.platform, "libc_ver", lambda: libc)
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    assert [f.subject for f in check_pages()] == ["pages"] * lacks


def test_the_doctor_on_memory_and_temperature(monkeypatch):
    assert check_memory(1 << 20).remedy
    assert check_memory(1 << 34).level == "ok"
    assert [f.subject for f in check_temperature(1.2)] == ["temperature"]
    assert not list(check_temperature(0.2))


def test_the_doctor_on_a_draft(tmp_path, monkeypatch):
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"GGUF and much more")
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    target = tmp_path / "target.gguf"
    target.write_bytes(b"GGUF and a lot more than that")
    fits = [edgespec.DraftFit("draft.gguf", True, ""), edgespec.DraftFit("tiny.gguf", True, "")]
    monkeypatch.setattr(draft_checks, "fitting_drafts", lambda reference: fits)
    slow = check_cost(Profile(HALF, HALF), draft, target)
    assert slow.level == "problem"
    assert "loses even if always right" in slow.text
    assert slow.remedy == "try another one: -md tiny.gguf"
    assert check_cost(Profile(FLAT, FLAT.scaled(0.1)), draft, target).level == "ok"
    monkeypatch.setattr(draft_checks, "fitting_drafts", lambda reference: [])
    rare = check_cost(Profile(HALF, HALF.scaled(0.4)), draft, target)
    assert rare.level == "note"
    assert "-md none" in rare.remedy


@pytest.mark.skipif(os.name != "posix", reason="links and permissions of POSIX")
@pytest.mark.parametrize("place", ["link", "link/below", "file", "closed/below"])
def test_the_doctor_on_a_profile_folder_that_cannot_be_written(tmp_path, place):
    libllama.require()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0)
    program = (
        "import edgespec\n"
        "for finding in edgespec.diagnose():\n"
        "    print(finding.level, finding.subject, finding.text, finding.remedy, sep='|')\n"
    )
    command = [sys.executable, "-c", program]
    if place == "closed/below" and os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("nothing is closed to root, and there is no setpriv")
        command = ["setpriv", "--bounding-set", "-all", "--inh-caps=-all", *command]
    env = {"EDGESPEC_PROFILES": str(tmp_path / place), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    told = next(line for line in done.stdout.splitlines() if "|profiles|" in line)
    assert told.startswith("problem|profiles|")
    assert "cannot be written" in told
    assert "set EDGESPEC_PROFILES to a folder" in told


@pytest.mark.long("measures real weights twice; tests/cli/test_tune_doctor.py does so once")
def test_the_doctor_on_real_weights(smollm2, small_draft, tmp_path, monkeypatch):
    from edgespec.backends.llama_cpp import LlamaCppModel
    from edgespec.costs.profiles import store

    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    findings = edgespec.diagnose(
        smollm2, small_draft, n_ctx=1024, draft_options={"n_ctx": 512}, temperature=1.0
    )
    by_subject = {f.subject: f for f in findings}
    assert not any(f.broken for f in findings)
    assert {"model", "placement", "threads", "profile", "lookup", "temperature"} <= set(by_subject)
    assert any("shorter than the target's 1024" in f.text for f in findings)
    assert any("edgespec tune" in f.remedy for f in findings if f.subject == "profile")
    assert not list(tmp_path.iterdir())  # it only looks

    model = LlamaCppModel(smollm2, EngineConfig(n_ctx=1024))
    store(model.fingerprint(), Curve((64,), (1, 32), ((1e-6, 2e-6),)))
    model.close()
    findings = edgespec.diagnose(smollm2, None, n_ctx=1024)
    profile = next(f for f in findings if f.subject == "profile")
    assert (profile.level, profile.text.split(":")[0]) == ("problem", "stale")


@pytest.mark.long("measures real weights; test_busy_machines.py has toys")
def test_beside_other_programs_the_doctor_is_sure_of_no_time(smollm2, busy_machine):
    done: list[str] = []
    findings = edgespec.diagnose(smollm2, None, n_ctx=512, progress=done.append)
    timed = [f for f in findings if f.subject in ("threads", "profile", "lookup")]
    assert [f.level for f in timed] == ["note"] * 3
    assert all(f.text.startswith("while other programs run: ") for f in timed)
    assert "checking the model: lookup done" in done


def test_the_doctor_on_a_model_that_cannot_be_loaded(tmp_path):
    libllama.require()
    path = tmp_path / "photo.gguf"
    path.write_bytes(b"PNG")
    for broken in (path, "no-such-model"):
        last = edgespec.diagnose(broken)[-1]
        assert (last.subject, last.level, last.broken) == ("model", "problem", True)


def test_the_doctor_says_how_much_is_kept_of_prompts(tmp_path, monkeypatch):
    libllama.require()
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    (tmp_path / "toy.gguf").write_bytes(b"weights")
    for n_files, level in ((0, "ok"), (1, "ok"), (0, "note")):
        if n_files:
            store, cache = test_prefixes.on_disk(tmp_path)
            test_prefixes.read(cache, [1, 2] * 50)
            cache.save()
            store.close()
        if level == "note":
            monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "toy.gguf" / "prefixes"))
        (found,) = [f for f in edgespec.diagnose() if f.subject == "prompts"]
        assert found.level == level
        assert level == "note" or found.text.startswith(f"{n_files} that were read are kept in")
