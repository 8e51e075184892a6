#!/usr/bin/env bash
# Makes what the pictures timeline_* and memory_timeline_* of this folder were made of, in out/. From the top: docs/figures/make.sh
set -euo pipefail
trace() { ./run timeline "${@:2}" --picture "out/timeline_$1.png"; }

./run ladder --model smollm2-135m --steps 3 --no-compute-alone --trace out/trace.json \
  --modes ddp,zero1,zero2,zero3,tensor_zero3,engine3
trace 02 out/trace.{zero1,zero2}.rank0.json
trace 03 out/trace.{zero2,zero3}.rank0.json
trace 05_host out/trace.{tensor_zero3,engine3}.rank0.json
./run ladder --model llama-20m --seq-len 256 --steps 2 --no-compute-alone --ranks-per-host 1 --link 100mbit \
  --trace out/link.json --modes tensor_zero3,engine3
trace 05 out/link.{tensor_zero3,engine3}.rank0.json

for c in 02 03; do ./run step $c --memory-timeline out/memory_timeline/$c.json; done
.venv/bin/python tools/plots/plot_memory_timeline.py --out docs/figures/memory_timeline out/memory_timeline/*.json
rm docs/figures/memory_timeline_*.svg
