"""Our modes beside PyTorch's own data parallelism: same weights, batches, threads, machine, run.

    ./run peers [--pairs ddp,zero1,zero2,zero3] [--model smollm2-360m] [--steps 6] [--rounds 3]

makes a model of SmolLM2's architecture with random weights and a token file of this project's prose, trains both sides
on them in turn, round after round, so that a busy machine hurts both alike, and prints

    step       seconds of a step: the median over rounds of a run's median, its first step left out
    ratio      ours to PyTorch's: the median over rounds
    spread     smallest and largest of the rounds' ratios
    compute    our step without any communication: forward and backward of every rank by itself, all at
               once, writing gradients in the same way (engine0), and the mode's own optimizer
    HWM        high-water mark of the largest rank's resident set
    difference the largest difference of a final weight, relative to the largest weight of its tensor
    others     the processors' time that other programs took, of the busiest round. A round with more
               than --others is run again, at most --rounds times in all; the least busy ones count

On both sides malloc keeps the end of its heap for the next step (MALLOC_TRIM_THRESHOLD_). Otherwise glibc may give
it back after every step, or not, depending on which small block happens to lie last, and forward touches new pages.

The figures go to out/peers.json. HWM of ours counts everything from the start of a rank to its end;
of PyTorch's ranks only what comes after the model was loaded, and of its libraries only what a rank
touches: it is forked from a process that has them. Both sides put large blocks on huge pages
(THP_MEM_ALLOC_ENABLE), which PyTorch does not by itself.
"""

import argparse
import concurrent.futures.process
import ctypes
import json
import multiprocessing.connection
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "data"))

import prepare  # noqa: E402
import token_file  # noqa: E402

OURS = {"ddp": "engine0", "zero1": "engine1", "zero2": "engine2", "zero3": "engine3"}
THEIRS = {"ddp": "DDP", "zero1": "DDP + ZeroRedundancyOptimizer", "zero2": "FSDP2, no reshard",
          "zero3": "FSDP2, reshard"}
MODELS = {
    "tiny": dict(vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, intermediate_size=176, num_hidden_layers=2),
    "smollm2-360m": dict(vocab_size=49152, hidden_size=960, num_attention_heads=15, num_key_value_heads=5,
                         head_dim=64, intermediate_size=2560, num_hidden_layers=32),
}
LEARNING_RATE = 5e-5
SEED = 42
LOSS_TOLERANCE = 1e-4  # relative
RANKS, SEQUENCE = 2, 128  # a rank has one sample of so many tokens in a step
REMOVED = {"--ours": "a pair has one mode; ./run ladder --modes compares ours with each other",
           "--seq-len": f"samples have {SEQUENCE} tokens", "--batch": "a rank has one sample a step",
           "--nproc": f"there are {RANKS} ranks",
           "--no-memory": "the peak of PyTorch's allocator is always asked for, by one short run",
           "--no-huge-pages": "large blocks are on huge pages on both sides"}
TIME_LIMIT_S = 3600

# PyTorch is imported once, which takes longer than to train a small model, and its ranks are forked
# from there: nothing may use a tensor before, so what does is forked too.
FORK = multiprocessing.get_context("fork")
ENVIRONMENT = dict(os.environ)  # of our side: as the caller has it, and huge pages


# glibc's, as its environment and as mallopt() name them: blocks of up to 32 MiB, the most that it allows, come from
# the heap, whose end is never given back.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}


class Failure(Exception):
    """What went wrong, for people to read."""


def in_a_child(function, *arguments):
    """What the function gives, or throws, in a process of its own."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise Failure(f"{function.__name__}: its process has died, perhaps for want of "
                          "memory") from None


# ---- what both sides train on --------------------------------------------------------------------


def make_weights(folder, model):
    """A model with random weights, as transformers saves it; gives its number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(SEED)
    config = LlamaConfig(tie_word_embeddings=True, rope_theta=100000.0, rms_norm_eps=1e-5,
                         max_position_embeddings=8192, **MODELS[model])
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    made.save_pretrained(folder, max_shard_size="100GB")
    return sum(parameter.numel() for parameter in made.parameters())


def make_tokens(path):
    """The prose of this project, a token a byte; gives the ids."""
    files = sorted(Path(".").glob("*.md")) + sorted(Path(".").glob("[0-9]*/README.md"))
    tokenizer = prepare.ByteTokenizer()
    ids = token_file.id_array(tokenizer.vocabulary)
    ids.extend(b"".join(file.read_bytes() for file in files))
    token_file.write_stream(path, tokenizer, ids)
    return ids


class SplitMix64:
    """The generator of tools/ladder/data/random.hpp."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self._state = seed & self.MASK

    def next(self):
        self._state = (self._state + 0x9E3779B97F4A7C15) & self.MASK
        bits = self._state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & self.MASK
        return bits ^ (bits >> 31)

    def below(self, bound):
        draw = self.next()
        while draw < (1 << 64) % bound:
            draw = self.next()
        return draw % bound


def shuffle(items, seed):
    """Puts `items` in the order of permutation(size, generator_for(seed, 0)) of random.hpp."""
    generator = SplitMix64(SplitMix64(SplitMix64(seed).next()).next())
    for i in range(len(items) - 1, 0, -1):
        j = generator.below(i + 1)
        items[i], items[j] = items[j], items[i]


def make_batches(ids, options, path):
    """What the sampler of tools/ladder/data deals to every rank at every step, as [step, rank, sample, token]."""
    import torch
    from safetensors.torch import save_file

    order = list(range((len(ids) - 1) // SEQUENCE))
    shuffle(order, SEED)
    needed = options.steps * RANKS
    if needed > len(order):
        raise Failure(f"{needed} samples of {SEQUENCE} tokens are needed, the text has "
                      f"{len(order)}: take fewer --steps")
    stream = torch.tensor(ids.tolist())
    samples = torch.stack([stream[i * SEQUENCE:(i + 1) * SEQUENCE + 1] for i in order[:needed]])
    samples = samples.view(options.steps, RANKS, 1, SEQUENCE + 1)
    save_file({"inputs": samples[..., :-1].contiguous(), "targets": samples[..., 1:].contiguous()}, path)


# ---- the two sides -------------------------------------------------------------------------------


def threads():
    return max(1, len(os.sched_getaffinity(0)) // RANKS)


def run_ours(pair, options, work, keep):
    """One run of the ladder program with one mode."""
    report, log = work / "ours.json", work / "ours.log"
    command = [options.ladder, "--modes", OURS[pair], "--weights", work / "weights",
               "--data", work / "text.tokens", "--nproc", RANKS, "--steps", options.steps,
               "--seq-len", SEQUENCE, "--lr", LEARNING_RATE, "--seed", options.seed_of_ours, "--json", report,
               *(["--save", work / "ours"] if keep else [])]
    with open(log, "w") as out:
        code = subprocess.run([str(part) for part in command], stdout=out,
                              stderr=subprocess.STDOUT, check=False, env=ENVIRONMENT).returncode
    if code != 0:
        raise Failure(f"{OURS[pair]} ended with {code}:\n{log.read_text()[-3000:]}")
    document = json.loads(report.read_text())
    mode, alone = document["modes"][0], document["compute_alone"]
    return {"step_s": mode["step_seconds_max"], "losses": mode["losses"],
            "hwm_mib": max(rank["high_water_mib"] for rank in mode["ranks"]),
            "compute_s": alone["forward_seconds"] + alone["backward_seconds"] + mode["optimizer_seconds_max"]}


def first_that_fails(processes):
    """Runs them all; the number of the first that fails, when the others have been killed, or None."""
    running = {}
    try:
        for process in processes:
            process.start()
            running[process.sentinel] = process
        while running:
            ended = multiprocessing.connection.wait(list(running), TIME_LIMIT_S)
            if not ended:
                raise Failure(f"PyTorch's ranks have not ended within {TIME_LIMIT_S} s")
            for process in [running.pop(sentinel) for sentinel in ended]:
                process.join()
                if process.exitcode != 0:
                    return processes.index(process)
        return None
    finally:
        for process in running.values():
            process.kill()
            process.join()


def torch_rank_main(log, **rank_options):
    """A rank of PyTorch's; what it says goes to the log."""
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    torch_rank.run(**rank_options)


def run_torch(pair, work, keep):
    """One run under PyTorch."""
    (work / "store").unlink(missing_ok=True)
    logs = [work / f"torch.{rank}.log" for rank in range(RANKS)]
    ranks = [FORK.Process(target=torch_rank_main, args=(logs[rank],), kwargs=dict(
        pair=pair, rank=rank, world_size=RANKS, work=work, learning_rate=LEARNING_RATE, threads=threads(),
        keep=keep)) for rank in range(RANKS)]
    failed = first_that_fails(ranks)
    if failed is not None:
        raise Failure(f"PyTorch's {THEIRS[pair]}: rank {failed} ended with {ranks[failed].exitcode}:\n"
                      f"{logs[failed].read_text()[-3000:]}")
    results = [json.loads((work / f"torch.{rank}.json").read_text()) for rank in range(RANKS)]
    return {"step_s": max(statistics.median(result["steps"][1:] or result["steps"]) for result in results),
            "hwm_mib": max(result["hwm_mib"] for result in results), "losses": results[0]["losses"]}


def check_losses(pair, ours, theirs):
    """Same weights and batches give the same losses, but for the rounding of sums."""
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not abs(a - b) <= LOSS_TOLERANCE * abs(b):
            raise Failure(f"{pair}: the loss of step {step} is {a} here and {b} under PyTorch; the "
                          "two sides do not train the same model on the same batches")


def largest_difference(ours, theirs):
    """Over all tensors: the largest |a - b|, divided by the largest |b| of the tensor."""
    from safetensors.torch import load_file

    a, b = load_file(ours), load_file(theirs)
    missing = set(a) ^ set(b)
    if missing:
        raise Failure(f"weights that only one side has: {', '.join(sorted(missing))}")
    return max(((a[name] - b[name]).abs().max() / b[name].abs().max()).item() for name in b)


# ---- the comparison ------------------------------------------------------------------------------


class Others:
    """What programs but this one and its children, all ended, took of the processors since it was made."""

    def __init__(self):
        self._begin = self._now()

    @staticmethod
    def _now():
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, idle, wait, interrupts, soft, stolen = map(int, stat.readline().split()[1:9])
        busy = user + nice + system + interrupts + soft + stolen
        own = sum(usage.ru_utime + usage.ru_stime for usage in map(
            resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        return busy - own * os.sysconf("SC_CLK_TCK"), busy + idle + wait

    def share(self):
        others, everything = (now - then for now, then in zip(self._now(), self._begin))
        return max(0.0, others / max(1, everything))


def run_round(pair, options, work, keep):
    """One run of either side, and the share of the processors that others took."""
    others = Others()
    print(f"  {OURS[pair]}", end="", flush=True)
    ours = run_ours(pair, options, work, keep)
    print(f" {ours['step_s']:.2f} s, {THEIRS[pair]}", end="", flush=True)
    theirs = run_torch(pair, work, keep)
    check_losses(pair, ours["losses"], theirs["losses"])
    share = others.share()
    print(f" {theirs['step_s']:.2f} s, others {share:.1%}", flush=True)
    return {"ours": ours, "torch": theirs, "others": share}


def quietest(run, rounds, others):
    """So many results of run(index), which has "others": the first that were quiet, else the quietest of twice as many."""
    done = []
    while sum(each["others"] <= others for each in done) < rounds and len(done) < 2 * rounds:
        done.append(run(len(done)))
    return sorted(done, key=lambda each: max(others, each["others"]))[:rounds]


def summary(runs, name):
    """The medians of all figures of one side."""
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "losses"}
    return {"name": name, **medians, "losses": runs[0]["losses"]}


def compare(pair, options, work):
    done = quietest(lambda index: run_round(pair, options, work, keep=index == 0), options.rounds,
                    options.others / 100)
    difference = in_a_child(largest_difference, work / "ours" / "model.safetensors",
                            work / "torch.safetensors")
    shutil.rmtree(work / "ours")
    (work / "torch.safetensors").unlink()
    ratios = [each["ours"]["step_s"] / each["torch"]["step_s"] for each in done]
    return {"pair": pair, "world_size": RANKS, "ours": summary([each["ours"] for each in done], OURS[pair]),
            "torch": summary([each["torch"] for each in done], THEIRS[pair]),
            "ratio": statistics.median(ratios), "ratios": ratios, "max_rel_diff": difference,
            "others": max(each["others"] for each in done)}


def print_table(rows):
    lines = [["pair", "ours", "PyTorch's", "step", "PyTorch", "ratio", "spread", "compute",
              "ours/compute", "HWM MiB", "PyTorch", "ratio", "difference", "others"]]
    for row in rows:
        ours, torch = row["ours"], row["torch"]
        lines.append([
            row["pair"], ours["name"], torch["name"], f"{ours['step_s']:.2f} s", f"{torch['step_s']:.2f} s",
            f"{row['ratio']:.2f}", f"{min(row['ratios']):.2f}-{max(row['ratios']):.2f}", f"{ours['compute_s']:.2f} s",
            f"{ours['step_s'] / ours['compute_s']:.2f}", f"{ours['hwm_mib']:.0f}", f"{torch['hwm_mib']:.0f}",
            f"{ours['hwm_mib'] / torch['hwm_mib']:.2f}", f"{row['max_rel_diff']:.1e}", f"{row['others']:.1%}"])
    widths = [max(map(len, column)) for column in zip(*lines)]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="./run peers", description="Our modes beside PyTorch's DDP, ZeroRedundancyOptimizer "
        "and FSDP2: same weights, batches and threads, in one run.")

    def pair_list(text):
        pairs = text.split(",")
        unknown = [pair for pair in pairs if pair not in OURS]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"'{unknown[0]}' is no pair; there are: {', '.join(OURS)}")
        return pairs

    def positive(text):
        number = int(text)
        if number < 1:
            raise argparse.ArgumentTypeError(f"{number} is less than 1")
        return number

    parser.add_argument("--pairs", type=pair_list, default=list(OURS), help=f"of {','.join(OURS)}")
    parser.add_argument("--model", choices=list(MODELS), default="smollm2-360m")
    parser.add_argument("--steps", type=positive, default=6, help="of every run (6)")
    parser.add_argument("--rounds", type=positive, default=3, help="of both sides in turn (3)")
    parser.add_argument("--others", type=float, default=3, metavar="PERCENT",
                        help="of the processors that other programs may take in a round (3)")
    parser.add_argument("--json", default="out/peers.json", help="where the figures go")
    parser.add_argument("--seed-of-ours", type=int, default=SEED, help=argparse.SUPPRESS)
    parser.add_argument("--ladder", default="build/release/bin/ladder", help=argparse.SUPPRESS)
    for word in sys.argv[1:]:
        if (name := word.partition("=")[0]) in REMOVED:
            parser.error(f"{name} was removed: {REMOVED[name]}")
    options = parser.parse_args()
    if not Path(options.ladder).is_file():
        parser.error(f"{options.ladder} is not there: ./run build ladder builds it")
    return options


def compare_all(options, work):
    """The document of figures."""
    print(f"Making {options.model} with random weights, and batches", flush=True)
    parameters = in_a_child(make_weights, work / "weights", options.model)
    in_a_child(make_batches, make_tokens(work / "text.tokens"), options,
               work / "batches.safetensors")
    rows = []
    for pair in options.pairs:
        print(f"{pair}: {OURS[pair]} beside {THEIRS[pair]}", flush=True)
        rows.append(compare(pair, options, work))
    return {"rows": rows, "parameters": parameters, "model": options.model, "steps": options.steps,
            "rounds": options.rounds, "command": ["./run", "peers", *sys.argv[1:]]}


def keep_the_heap():
    """In programs started from now on, in this one and in what is forked from it."""
    libc = ctypes.CDLL(None)
    for name, (option, size) in MALLOC.items():
        ENVIRONMENT[name] = str(size)
        if libc.mallopt(option, size) != 1:
            raise Failure(f"mallopt() refuses {name} = {size}")


def import_torch():
    """PyTorch reads these when it is loaded; our side has the same pages, and the same malloc."""
    global torch_rank
    os.environ["OMP_NUM_THREADS"] = str(threads())
    os.environ["THP_MEM_ALLOC_ENABLE"] = ENVIRONMENT["THP_MEM_ALLOC_ENABLE"] = "1"
    keep_the_heap()
    import torch_rank


def main():
    options = parse_arguments()
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    import_torch()
    try:
        with tempfile.TemporaryDirectory(prefix="zero_peers_") as folder:
            document = compare_all(options, Path(folder))
    except Failure as failure:
        sys.exit(f"peers: {failure}")
    print(f"\nMedians of {options.rounds} round{'' if options.rounds == 1 else 's'}; large blocks "
          "on huge pages, on both sides")
    print_table(document["rows"])
    temporary = Path(options.json + ".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(options.json)
    print(f"\nfigures: {options.json}")


if __name__ == "__main__":
    main()
