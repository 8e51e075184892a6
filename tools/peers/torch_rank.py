"""One rank of PyTorch's own data parallelism, trained on given weights and batches, and measured.

peers.py forks a process for each rank and calls run() there. Four ways, each in the fairest form that
there is:

    ddp     DistributedDataParallel, gradients as views of the buckets, fused AdamW
    zero1   the same with ZeroRedundancyOptimizer around fused AdamW
    zero2   fully_shard (FSDP2) of every layer and of the root, not resharded after forward
    zero3   the same, resharded after forward

The model is that of transformers. Under zero2 and zero3 it is built without storage and filled shard
by shard, so that no rank holds all of it; the high-water mark of the resident set is set back when
the model is there, so that loading does not count.
"""

import json
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402


def high_water_mark_mib():
    return next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmHWM:"))


def forget_high_water_mark():
    Path("/proc/self/clear_refs").write_text("5")


def whole_model(weights):
    return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)


def sharded_model(weights, reshard):
    config = AutoConfig.from_pretrained(weights)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    model.to_empty(device="cpu")
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config)  # its table is no parameter
    with safe_open(Path(weights) / "model.safetensors", framework="pt") as stored, torch.no_grad():
        for name, parameter in model.named_parameters():
            piece = parameter.to_local()
            pieces = stored.get_tensor(name).chunk(dist.get_world_size())
            if dist.get_rank() < len(pieces):
                piece.copy_(pieces[dist.get_rank()])
    return model


def build(pair, weights, learning_rate):
    settings = dict(lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    if pair in ("zero2", "zero3"):
        model = sharded_model(weights, reshard=pair == "zero3")
        return model, torch.optim.AdamW(model.parameters(), **settings)
    model = DistributedDataParallel(whole_model(weights), gradient_as_bucket_view=True)
    if pair == "ddp":
        return model, torch.optim.AdamW(model.parameters(), **settings)
    return model, ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, **settings)


def train(model, optimizer, batches):
    steps, losses = [], []
    for inputs, targets in zip(batches["inputs"], batches["targets"]):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
        loss.backward()
        optimizer.step()
        steps.append(time.perf_counter() - begin)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return steps, losses


def whole_weights(model):
    """Name and whole tensor of every parameter, a tied one once; all ranks must ask."""
    for name, parameter in getattr(model, "module", model).named_parameters():
        tensor = parameter.detach()
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def measure(pair, weights, learning_rate, batches, final):
    """Trains, and the figures of it; with `final` rank 0 puts the trained weights there."""
    model, optimizer = build(pair, weights, learning_rate)
    dist.barrier()
    forget_high_water_mark()
    steps, losses = train(model, optimizer, batches)
    result = {"steps": steps, "losses": losses, "hwm_mib": high_water_mark_mib()}
    if final:
        whole = {name: tensor.clone().contiguous() for name, tensor in whole_weights(model)}
        if dist.get_rank() == 0:
            save_file(whole, final)
    return result


def run(pair, rank, world_size, work, learning_rate, threads, keep):
    """A rank; all are called at once. In the folder `work` are the weights and batches, and there go the result and,
    with `keep`, the trained weights."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{work / 'store'}", rank=rank, world_size=world_size)
    batches = {name: tensor[:, rank] for name, tensor in load_file(work / "batches.safetensors").items()}
    final = work / "torch.safetensors" if keep else None
    result = measure(pair, work / "weights", learning_rate, batches, final)
    (work / f"torch.{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
