"""One rank of PyTorch's own data parallelism or of DeepSpeed, trained on given weights and batches, and measured.

peers.py forks a process for each rank and calls run() there. Six ways, each in the fairest form that
there is:

    ddp     DistributedDataParallel, gradients as views of the buckets, fused AdamW
    zero1   the same with ZeroRedundancyOptimizer around fused AdamW
    zero2   fully_shard (FSDP2) of every layer and of the root, not resharded after forward
    zero3   the same, resharded after forward
    deepspeed1, deepspeed3
            DeepSpeed's ZeRO of this stage around fused AdamW

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


def status_mib(key):
    """A line of /proc/self/status (VmHWM, VmRSS), in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def forget_high_water_mark():
    Path("/proc/self/clear_refs").write_text("5")


def sent_over_loopback():
    """Bytes that all processes of this machine have sent to each other so far, headers and all."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def highest_sum(profile):
    """The most bytes that were live at a time since the profile began, in MiB."""
    events = [event for event in profile.profiler.kineto_results.events()
              if event.name() == "[memory]"]
    live = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return highest / 2**20


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


def deepspeed_engine(model, optimizer, stage):
    """DeepSpeed's engine, which is model and optimizer in one."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
    import deepspeed

    return deepspeed.initialize(model=model, optimizer=optimizer, dist_init_required=False, config={
        "train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # it clips to a norm of 1 by default
        "zero_optimization": {"stage": stage}})[0]


def build(pair, weights, learning_rate):
    settings = dict(lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    if pair.startswith("deepspeed"):
        model = whole_model(weights)
        engine = deepspeed_engine(model, torch.optim.AdamW(model.parameters(), **settings), int(pair[-1]))
        return engine, engine
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
        times = [time.perf_counter()]
        if model is not optimizer:
            optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
        times.append(time.perf_counter())
        if model is optimizer:
            model.backward(loss)
        else:
            loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        steps.append({"forward_s": times[1] - times[0], "backward_s": times[2] - times[1],
                      "optimizer_s": times[3] - times[2], "step_s": times[3] - times[0]})
    return steps, losses


def peak_of_two_steps(pair, weights, learning_rate, batches):
    """Since before the model is made. The second step has the optimizer's states and is the peak."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        train(*build(pair, weights, learning_rate), {name: tensor[:2] for name, tensor in batches.items()})
    return highest_sum(profile)


def whole_weights(model):
    """Name and whole tensor of every parameter, a tied one once; all ranks must ask."""
    for name, parameter in getattr(model, "module", model).named_parameters():
        if hasattr(parameter, "ds_id"):  # sharded by DeepSpeed
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter]):
                yield name, parameter.detach()
            continue
        tensor = parameter.detach()
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def mib_of(tensors):
    """Elements times bytes, of a DTensor those of its local shard."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local) / 2**20


def model_states(model, optimizer):
    """MiB that this rank holds; the optimizer's step counts, a tensor of four bytes each, are among them.

    Nothing for DeepSpeed, which has buffers of its own beside these tensors."""
    if model is optimizer:
        return {}
    parameters = list(model.parameters())  # a tied one once
    # What ZeroRedundancyOptimizer holds is in the optimizer that it wraps.
    states = getattr(optimizer, "optim", optimizer).state.values()
    return {
        "parameter_mib": mib_of(parameter.detach() for parameter in parameters),
        "gradient_mib": mib_of(parameter.grad for parameter in parameters if parameter.grad is not None),
        "optimizer_mib": mib_of(value for state in states for value in state.values()
                                if isinstance(value, torch.Tensor))}


def measure(pair, weights, learning_rate, batches, final):
    """Trains, and the figures of it; with `final` rank 0 puts the trained weights there."""
    model, optimizer = build(pair, weights, learning_rate)
    dist.barrier()
    forget_high_water_mark()
    sent = sent_over_loopback()
    steps, losses = train(model, optimizer, batches)
    dist.barrier()
    sent = (sent_over_loopback() - sent) / len(steps)
    result = {"steps": steps, "losses": losses, "sent_bytes": sent, "rest_mib": status_mib("VmRSS"),
              "hwm_mib": status_mib("VmHWM"), **model_states(model, optimizer)}
    if final:
        whole = {name: tensor.clone().contiguous() for name, tensor in whole_weights(model)}
        if dist.get_rank() == 0:
            save_file(whole, final)
    return result


def run(pair, rank, world_size, work, learning_rate, threads, keep, memory):
    """A rank; all are called at once. In the folder `work` are the weights and batches, and there go the result and,
    with `keep`, the trained weights. `memory`: trains two steps and says the peak of the allocator's bytes only."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{work / 'store'}", rank=rank, world_size=world_size)
    batches = {name: tensor[:, rank] for name, tensor in load_file(work / "batches.safetensors").items()}
    how = pair, work / "weights", learning_rate, batches
    result = ({"peak_mib": peak_of_two_steps(*how)} if memory
              else measure(*how, work / "torch.safetensors" if keep else None))
    (work / f"torch.{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
