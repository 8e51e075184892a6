// How cost grows with ranks, hosts, units and parameters: each figure at several sizes, and the
// exponent of its growth.
//   ./run bench growth --help

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>

#include <tools/models/mlp.hpp>
#include <tools/plan/planner.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/base/error.hpp>
#include <zero/engine.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>

#include "bench.hpp"

namespace zero::bench {
namespace {

// Bytes whose exponent is larger fail: a sum over N-1 peers has a little more than 1.
constexpr double kLinear = 1.05;
constexpr int kRanksPerHost = 8;
// Of a square layer: one that has next to nothing to compute, and one that 4096 ranks can share.
constexpr std::int64_t kNarrow = 16, kWide = 1024;

struct Settings {
  bool brief = false;
  int steps = 5;
};

struct Point {
  double size;
  std::map<std::string, double> figures;
};
using Points = std::vector<Point>;

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// User's and system's, of this process or of the children that have ended.
double processor_seconds(int who = RUSAGE_SELF) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Zeros are as quick to compute with as other values, and drawing those takes longer than a step.
struct Zeros final : nn::ParameterSource {
  void fill(const nn::Parameter& /*parameter*/, at::Tensor& out) override { out.zero_(); }
};

// Of one rank: the engine made and some steps taken, a stack of `units` square layers, stage 3.
Json train(const dist::Mesh& mesh, std::int64_t units, std::int64_t width, int steps) {
  const auto started = std::chrono::steady_clock::now();
  const auto model = nn::defer([&] {
    return std::make_shared<tools::Mlp>(tools::MlpConfig{
        .inputs = width,
        .hidden = std::vector<std::int64_t>(static_cast<std::size_t>(units), width),
        .outputs = 1});
  });
  Zeros zeros;
  Engine engine(*model, mesh, optim::adamw(), {.stage = 3}, nn::default_units(), &zeros);
  Json figures = {{"start_up_s", since(started)}};
  std::vector<double> seconds, used;
  dist::Traffic before;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor x = at::ones({4, width}), y = at::ones({4, 1});
    before = mesh.world().traffic();
    mesh.world().barrier();
    const auto begin = std::chrono::steady_clock::now();
    const double processor = processor_seconds();
    engine.backward(engine.forward([&] { return model->loss(x, y, 4); }, 4));
    engine.step();
    seconds.push_back(since(begin));
    used.push_back(processor_seconds() - processor);
  }
  const dist::Traffic sent = mesh.world().traffic().since(before);
  const std::int64_t control = sent.bytes(dist::Purpose::kControl);
  const memory::Snapshot held = memory::snapshot();
  figures["step_s"] = median(seconds);
  figures["step_cpu_s"] = median(used);
  figures["control_bytes"] = control;
  figures["sent_bytes"] = sent.bytes() - control;
  figures["sent_to_hosts_bytes"] = sent.between_hosts();
  figures["states_bytes"] = held.model_states();
  return figures;
}

// The largest of the ranks.
std::map<std::string, double> largest(const std::vector<Json>& ranks) {
  std::map<std::string, double> all;
  for (const Json& rank : ranks) {
    for (const auto& [key, value] : rank.items()) {
      all[key] = std::max(all[key], value.get<double>());
    }
  }
  return all;
}

std::map<std::string, double> on_real_ranks(int count, std::int64_t units, int steps) {
  dist::LaunchOptions launch;
  launch.world_size = count;
  return largest(on_ranks(launch, [&](dist::Communicator& communicator) {
    return train(communicator, units, kNarrow, steps);
  }));
}

std::map<std::string, double> on_fake_rank(int ranks, std::int64_t units, std::int64_t width,
                                           int steps) {
  dist::LaunchOptions launch;
  launch.world_size = 1;
  return largest(on_ranks(launch, [&](dist::Communicator& /*alone*/) {
    auto rank = dist::connect_fake(0, ranks, kRanksPerHost);
    return train(rank, units, width, steps);
  }));
}

// Real ranks that share two cores: what each takes of the processor says more than the clock.
Points over_ranks(const Settings& settings) {
  Points points;
  for (const int ranks : {1, 2, 4, 8}) {
    const double before = processor_seconds(RUSAGE_CHILDREN);
    const auto begin = std::chrono::steady_clock::now();
    dist::LaunchOptions launch;
    launch.world_size = ranks;
    on_ranks(launch, [](dist::Communicator&) { return Json(); });
    const double seconds = since(begin);
    const double used = (processor_seconds(RUSAGE_CHILDREN) - before) / ranks;
    points.push_back({ranks * 1.0, on_real_ranks(ranks, /*units=*/20, 4 * settings.steps)});
    points.back().figures["connect_s"] = seconds;
    points.back().figures["connect_cpu_s"] = used;
  }
  return points;
}

Points over_hosts(const Settings& settings) {
  Points points;
  for (const int hosts : {2, 8, 64, 512}) {
    const int ranks = hosts * kRanksPerHost;
    points.push_back({hosts * 1.0, on_fake_rank(ranks, /*units=*/20, kWide, settings.steps)});
    plan::Request request;
    request.model = plan::model_of_size(7'000'000'000);
    request.world_size = ranks;
    request.hosts.ranks_per_host = kRanksPerHost;
    const auto begin = std::chrono::steady_clock::now();
    const plan::HostPlan zero3 = plan::make_plan(request).hosts.front();
    points.back().figures["plan_s"] = since(begin);
    points.back().figures["plan_leaves_a_host_bytes"] = zero3.leaves;
    points.back().figures["plan_step_s"] = zero3.seconds;
  }
  return points;
}

Points over_units(const Settings& settings) {
  Points points;
  for (const std::int64_t units : {10, 50, 200, 1000, 2000}) {
    if (settings.brief && units > 200) break;
    points.push_back({units * 1.0, on_real_ranks(2, units, settings.steps)});
  }
  return points;
}

// One rank of 64, in 16 layers: no machine here holds all ranks.
Points over_parameters(const Settings& settings) {
  constexpr std::int64_t kUnits = 16;
  Points points;
  for (const double millions : {10.0, 50.0, 250.0, 1300.0}) {
    if (settings.brief && millions > 50) break;
    const auto width = static_cast<std::int64_t>(std::sqrt(millions * 1e6 / kUnits));
    points.push_back({1e6 * millions, on_fake_rank(64, kUnits, width, settings.steps)});
    plan::Request request;
    request.model = plan::model_of_size(std::llround(millions * 1e6), kUnits);
    request.policy = plan::fp32();
    request.world_size = 64;
    const plan::StagePlan zero3 = plan::plan_stage(
        request, plan::Stage::kZero3, plan::data_mesh(plan::Stage::kZero3, request.world_size));
    points.back().figures["plan_states_bytes"] = static_cast<double>(zero3.states.total());
    points.back().figures["plan_sent_bytes"] = zero3.sent.total();
  }
  return points;
}

// The slope of a line through the logarithms, by least squares. Without size 1: a rank alone has
// nobody to wait for or to send to. Control bytes go to each of the other
// N-1 ranks, so they are compared with that number.
double exponent(const Points& points, const std::string& figure, bool is_of_ranks) {
  const double self = is_of_ranks && figure == "control_bytes" ? 1 : 0;
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [size, figures] : points) {
    if (size <= 1) continue;
    const double a = std::log(size - self), b = std::log(figures.at(figure));
    n += 1, x += a, y += b, xx += a * a, xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

Measured measure(const std::string& figure, const Points& points, bool is_of_ranks) {
  Measured measured{{points.back().figures.at(figure.ends_with("_s") ? figure : "step_s")}};
  for (const auto& [size, figures] : points) {
    measured.counters[fmt::format("value{}", measured.counters.size() + 1)] = figures.at(figure);
  }
  measured.counters["exponent"] = exponent(points, figure, is_of_ranks);
  if (figure.ends_with("_bytes") && measured.counters["exponent"] > kLinear) {
    throw Error(fmt::format("{} grows with the power {:.2f}, not 1 or less", figure,
                            measured.counters["exponent"]));
  }
  return measured;
}

int run_growth(int argc, char** argv) {
  memory::install();
  Settings settings;
  CLI::App options{"How cost grows with ranks, hosts, units and parameters."};
  options.add_flag("--brief", settings.brief, "without the largest sizes");
  number(options, "--steps", settings.steps, "of each size", 2, 1000);
  const std::vector<std::string> trained = {"start_up_s",    "step_s",     "step_cpu_s",
                                            "control_bytes", "sent_bytes", "states_bytes"};
  struct Axis {
    std::string name;  // with the sizes
    Points (*points)(const Settings&);
    std::vector<std::string> more;  // figures
  };
  const std::vector<Axis> axes = {
      {"ranks:1,2,4,8", over_ranks, {"connect_s", "connect_cpu_s"}},
      {"hosts:2,8,64,512",
       over_hosts,
       {"sent_to_hosts_bytes", "plan_s", "plan_leaves_a_host_bytes", "plan_step_s"}},
      {"units:10,50,200,1000,2000", over_units, {}},
      {"millions:10,50,250,1300", over_parameters, {"plan_states_bytes", "plan_sent_bytes"}}};
  return run(argc, argv, options, [&] {
    for (const Axis& axis : axes) {
      std::vector<std::string> figures = trained;
      figures.insert(figures.end(), axis.more.begin(), axis.more.end());
      const auto points = std::make_shared<Points>();  // measured with the first that is asked for
      for (const std::string& figure : figures) {
        add(fmt::format("growth/{}/{}", axis.name, figure), [=, &settings] {
          if (points->empty()) *points = axis.points(settings);
          return measure(figure, *points, axis.points == over_ranks);
        });
      }
    }
  });
}

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) { return zero::bench::run_growth(argc, argv); }
