"""Facts of PyTorch's NCCL backend on one GPU, in a world of one; the last line is JSON."""

import ctypes
import json
import os
import sys
import tempfile

os.environ.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="2", TORCH_NCCL_DUMP_ON_TIMEOUT="0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if not torch.cuda.is_available():
    sys.exit("there is no usable GPU (torch sees none)")
gpu = torch.device("cuda", 0)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=gpu)
    # Memory of a tensor that was waited for and dropped, while its Work lives and after.
    tensor = torch.ones(1 << 24, device=gpu)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    del tensor
    stays = torch.cuda.memory_allocated() == held
    del work
    # An operation that waits for a second of other work is aborted before it begins.
    other = torch.ones(1 << 24, device=gpu)
    torch.cuda._sleep(2_000_000_000)
    work = dist.all_reduce(other, async_op=True)
    dist.group.WORLD._get_backend(gpu).abort()
    torch.cuda.synchronize()
    hides = work.is_completed()
    try:
        work.wait()
    except RuntimeError:
        hides = False
version = ".".join(map(str, torch.cuda.nccl.version()))  # that of the header
try:
    loaded = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(loaded))
    version = f"{loaded.value // 10000}.{loaded.value // 100 % 100}.{loaded.value % 100}"
except OSError:  # it is a part of LibTorch
    pass
print(json.dumps({"memory stays after wait() while the Work lives": stays, "is_completed() hides an abort": hides,
                  "NCCL": version}), flush=True)
os._exit(0)  # the group is aborted: nothing is left to destroy
