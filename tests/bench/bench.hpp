#pragma once

namespace zero::train {
class Registry;
}

namespace zero::bench {

/// The main program of a chapter's benchmarks: for every mode that `register_chapter` adds, what a
/// rank holds and sends and what a step takes, on ranks forked for it. Options: --nproc N (2),
/// --model NAME (tiny), --layers N, --seq-len N (64), --steps N (12), and those of bench::Program.
/// The exit code: 1 if ranks failed, or a mode holds more or less than the formula of its stage
/// says (by 0.1 %).
///
/// Counters of each benchmark, where not said otherwise the mean over ranks: `parameters_mib`,
/// `gradients_mib`, `optimizer_mib` and their sum `total_mib` at rest, `total_max_mib` (of the rank
/// that holds most), `peak_mib` over a step, all by the allocator; `ratio` and `formula`, the total
/// as measured and by the strategy's own formula, over what plain DDP holds with AdamW (four copies
/// of the parameters); `sent_v`, bytes sent in a step in copies of the parameters; `forward_s`,
/// `backward_s`, `communication_s`, `optimizer_s`, medians over steps.
int run_chapter(int argc, char** argv, void (*register_chapter)(train::Registry&));

}  // namespace zero::bench
