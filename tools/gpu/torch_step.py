"""Steps of SmolLM2-360M with random weights in PyTorch on one device; the last line is JSON, as device_step says it.

    torch_step.py [--mode plain|keep|reshard] [--model smollm2-360m|tiny] [--device cuda|cpu]

plain: a loop of one's own under autocast. keep, reshard: FSDP2 in a world of one, which keeps parameters after forward
or frees them. All compute in bfloat16 and update float32 weights with fused AdamW.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

MODELS = {
    "tiny": dict(vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 intermediate_size=176, num_hidden_layers=2),
    "smollm2-360m": dict(vocab_size=49152, hidden_size=960, num_attention_heads=15, num_key_value_heads=5, head_dim=64,
                         intermediate_size=2560, num_hidden_layers=32)}
WARM_UP = 3


def launches_of(work, folder):
    """Kernels that `work` starts on the GPU."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        work()
    trace = Path(folder) / "trace.json"
    recorded.export_chrome_trace(str(trace))
    return sum(event.get("cat") == "kernel" for event in json.loads(trace.read_text())["traceEvents"])


def make_model(options, folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**MODELS[options.model], max_position_embeddings=8192, tie_word_embeddings=True,
                         attn_implementation="sdpa", use_cache=False)
    torch.manual_seed(1)
    with torch.device(options.device):
        model = LlamaForCausalLM(config)
    if options.mode != "plain":
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo", rank=0, world_size=1,
                                init_method=f"file://{folder}/store")
        sharding = dict(mesh=init_device_mesh(options.device, (1,)), reshard_after_forward=options.mode == "reshard",
                        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        for layer in model.model.layers:
            fully_shard(layer, **sharding)
        fully_shard(model, **sharding)
    return model


def measure(options, folder):
    on_gpu = options.device == "cuda"
    model = make_model(options, folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(MODELS[options.model]["vocab_size"], (options.batch, options.seq_len + 1)).to(options.device)
    finish = torch.cuda.synchronize if on_gpu else lambda: None
    cast = torch.autocast(options.device, torch.bfloat16) if options.mode == "plain" else contextlib.nullcontext()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with cast:
            logits = model(input_ids=ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(WARM_UP):
        step()
    finish()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(options.steps):
        loss = step()
    finish()
    took = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    launches = launches_of(lambda: (step(), finish()), folder)
    return {"tokens/s": options.steps * options.batch * options.seq_len / took, "peak MiB": peak,
            "launches": launches, "loss": loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", choices=("plain", "keep", "reshard"), default="plain")
    parser.add_argument("--model", choices=MODELS, default="smollm2-360m")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name, default in (("--batch", 8), ("--seq-len", 1024), ("--steps", 20)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no usable GPU (torch sees none)")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options, folder)))
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
