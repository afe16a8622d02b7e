"""Serve a model with llama.cpp's own server, from the Python package `xllamacpp`.

python -m benchmarks.llama_server MODEL.gguf --port N [--slots N] [--spec-type TYPE] [--draft F]
"""

from __future__ import annotations

import argparse
import os
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--n-ctx", type=int, default=4096, help="tokens of each slot")
    parser.add_argument("--spec-type", default="none")
    parser.add_argument("--draft", default="")
    parser.add_argument("--cache-ram", type=int, default=0, help="MiB for prompts of earlier slots")
    parser.add_argument("--slot-save-path", default="")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.port = args.model, args.port
    params.hostnames = ["127.0.0.1"]
    params.n_parallel, params.n_ctx = args.slots, args.slots * args.n_ctx
    params.cache_ram_mib, params.verbosity = args.cache_ram, -1
    params.slot_save_path = args.slot_save_path
    kind = args.spec_type.replace("-", "_")
    types = xllamacpp.common_speculative_type
    params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}")]
    groups = [params.cpuparams, params.cpuparams_batch]
    if args.draft:
        draft = params.speculative.draft
        draft.mparams.path = args.draft
        groups += [draft.cpuparams, draft.cpuparams_batch]
    for threads in groups:
        threads.n_threads = os.cpu_count()
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
