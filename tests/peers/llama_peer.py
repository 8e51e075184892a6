"""Compares the project's Llama with that of Hugging Face's transformers, both directions.

    llama_peer.py make FOLDER [--model tiny|smollm2-360m] [--task text|reviews] [--seed N]

writes a model of SmolLM2's architecture, with random weights in bfloat16, and what it answers:

    FOLDER/config.json                        written by save_pretrained
    FOLDER/model-00001-of-0000N.safetensors   written by save_pretrained, N is 4 or 5
    FOLDER/model.safetensors.index.json       written by save_pretrained
    FOLDER/logits.safetensors                 metadata {"task": "text" or "reviews"}, and
        input_ids   int64 [2, 128]    token ids
        lengths     int64 [2]         tokens before padding: 128, 128 (text) or 128, 100 (reviews)
        logits      float32           [2, 128, vocabulary] (text) or [2, 5] (reviews)

The logits are those of the bfloat16 weights, read back from the files and computed in float32.
For reviews the model is a classifier of 5 classes, and the end of the second sample is pad_token_id.

    llama_peer.py check LOGITS FOLDER... [--tolerance 1e-4]

loads each FOLDER (config.json and weights in any dtype, written by C++) as transformers does, without a
weight missing or left over, computes the logits for the ids in the file LOGITS in float32, and
compares. Exit code 0 where no logit is off by more than the tolerance.

Needs torch, transformers and safetensors, all in requirements-peers.txt. Nothing is downloaded.
"""

import argparse
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
)
from transformers.utils import logging  # noqa: E402

SAMPLES, TOKENS, CLASSES, PAD_ID = 2, 128, 5, 0
PADDED_LENGTH = 100
SHARDS = 4

PRESETS = {
    "tiny": dict(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=176,
    ),
    "smollm2-360m": dict(
        vocab_size=49152, hidden_size=960, num_hidden_layers=32, num_attention_heads=15,
        num_key_value_heads=5, head_dim=64, intermediate_size=2560,
    ),
}

TASKS = {"text": AutoModelForCausalLM, "reviews": AutoModelForSequenceClassification}


def make_config(model, task):
    config = LlamaConfig(
        **PRESETS[model],
        hidden_act="silu",
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=PAD_ID if task == "reviews" else None,
    )
    if task == "reviews":
        config.num_labels = CLASSES
    return config


@torch.no_grad()
def fill(model, seed):
    """Weights with which every part of the model matters to the logits: matrices that keep the size
    of what they multiply, and norms that are not all ones."""
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        values = torch.randn(parameter.shape, generator=random)
        if parameter.dim() == 2:
            parameter.copy_(values / math.sqrt(parameter.shape[1]))
        else:
            parameter.copy_(1 + 0.2 * values)


def make_inputs(config, task, seed):
    """Token ids [2, 128] and the lengths of the samples; ids of text are never the padding's."""
    random = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(1, config.vocab_size, (SAMPLES, TOKENS), generator=random)
    lengths = torch.full((SAMPLES,), TOKENS)
    if task == "reviews":
        lengths[1] = PADDED_LENGTH
        ids[1, PADDED_LENGTH:] = PAD_ID
    return ids, lengths


def load(folder, task):
    """The model of a folder in float32; stops where a weight is missing or not used."""
    model, info = TASKS[task].from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    problems = {what: sorted(map(str, names)) for what, names in info.items() if names}
    if problems:
        sys.exit(f"{folder}: transformers reports {problems}")
    return model.eval()


@torch.no_grad()
def logits_of(model, ids, lengths):
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    return model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits.float()


def make(folder, model_name, task, seed):
    config = make_config(model_name, task)
    model = TASKS[task].from_config(config, dtype=torch.float32)
    fill(model, seed)
    model = model.to(torch.bfloat16)
    # One part in a hundred more, so that the last file is not a crumb.
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=size * 101 // (100 * SHARDS))
    files = sorted(path.name for path in folder.glob("model-*.safetensors"))
    if len(files) < 2:
        sys.exit(f"{folder}: transformers wrote {files}, but several files are to be tested")
    ids, lengths = make_inputs(config, task, seed)
    logits = logits_of(load(folder, task), ids, lengths)
    save_file(
        {"input_ids": ids, "lengths": lengths, "logits": logits.contiguous()},
        folder / "logits.safetensors",
        metadata={"task": task},
    )
    print(f"{model_name}, {task}: {len(files)} files, logits {list(logits.shape)}, "
          f"standard deviation {logits.std():.3f}")


def check(folder, logits_file, tolerance):
    """Whether the model of the folder gives these logits."""
    with safe_open(logits_file, framework="pt") as file:
        task = file.metadata()["task"]
    expected = load_file(logits_file)
    found = logits_of(load(folder, task), expected["input_ids"], expected["lengths"])
    if found.shape != expected["logits"].shape:
        sys.exit(f"{folder}: logits {list(found.shape)}, must be {list(expected['logits'].shape)}")
    difference = (found - expected["logits"]).abs().max().item()
    print(f"{folder}: largest difference of a logit {difference:.3g}, allowed {tolerance:.3g}")
    return difference <= tolerance


def main():
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    make_parser = steps.add_parser("make", help="write weights and logits")
    make_parser.add_argument("folder", type=Path)
    make_parser.add_argument("--model", choices=PRESETS, default="tiny")
    make_parser.add_argument("--task", choices=TASKS, default="text")
    make_parser.add_argument("--seed", type=int, default=1)
    check_parser = steps.add_parser("check", help="compare the logits of folders with a file")
    check_parser.add_argument("logits", type=Path)
    check_parser.add_argument("folders", type=Path, nargs="+")
    check_parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    if arguments.step == "make":
        make(arguments.folder, arguments.model, arguments.task, arguments.seed)
        return 0
    good = [check(folder, arguments.logits, arguments.tolerance) for folder in arguments.folders]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
