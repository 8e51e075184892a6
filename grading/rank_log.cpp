#include "rank_log.hpp"

#include <ATen/record_function.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "small_formulas.hpp"

namespace zero::exercise {
namespace {

// Records what the rank in this process does.
class Recorder {
 public:
  explicit Recorder(dist::Communicator& communicator) : communicator_(communicator) {
    communicator_.times().record(&activities_);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() { communicator_.times().record(nullptr); }

  void add(Event event) {
    take_collectives();
    event.step = step();
    log_.events.push_back(std::move(event));
  }

  void end_step(const memory::Snapshot& snapshot) {
    take_collectives();
    StepBytes bytes;
    bytes.held = snapshot.current;
    bytes.peak = snapshot.peak;
    bytes.states_peak = snapshot.states_peak;
    const dist::Traffic sent = communicator_.traffic().since(sent_before_);
    for (std::size_t p = 0; p < dist::kPurposes; ++p) {
      bytes.sent[p] = sent.bytes(static_cast<dist::Purpose>(p));
    }
    sent_before_ = communicator_.traffic();
    log_.steps.push_back(bytes);
  }

  RankLog take() {
    take_collectives();
    return std::move(log_);
  }

 private:
  int step() const { return static_cast<int>(log_.steps.size()) + 1; }

  // Takes what the communicator has recorded since the last call. Only starts and waits count, with
  // names such as "start all_gather parameter"; other activities overlap with them.
  void take_collectives() {
    for (const dist::Activity& activity : activities_) {
      const bool starts = activity.name.rfind("start ", 0) == 0;
      if (!starts && activity.name.rfind("wait ", 0) != 0) continue;
      log_.events.push_back({starts ? Event::Kind::kStart : Event::Kind::kWait, step(),
                             activity.name.substr(activity.name.find(' ') + 1), activity.bytes,
                             /*layer=*/-1, /*digest=*/0});
    }
    activities_.clear();
  }

  dist::Communicator& communicator_;
  std::vector<dist::Activity> activities_;
  dist::Traffic sent_before_;
  RankLog log_;
};

std::unique_ptr<Recorder> recorder;

bool has_shape(const at::Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns;
}

std::uint64_t digest_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  const auto* const bits = static_cast<const char*>(whole.const_data_ptr());
  return std::hash<std::string_view>()({bits, whole.nbytes()});
}

// The shapes of a matrix product say which layer computes, and in which pass.
void record_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() != 2 || b.dim() != 2) return;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto [rows, columns] = kShapes[static_cast<std::size_t>(layer)];
    if (has_shape(b, rows, columns)) {
      recorder->add({Event::Kind::kForward, 0, "", static_cast<std::int64_t>(b.nbytes()), layer,
                     digest_of(b), digest_of(a)});
    } else if (a.size(0) == rows && b.size(1) == columns) {
      recorder->add({Event::Kind::kBackward, 0, "", 0, layer, /*digest=*/0, digest_of(a.t())});
    } else if (has_shape(b, columns, rows - 1)) {
      recorder->add({Event::Kind::kBackward, 0, "", 0, layer, /*digest=*/0});
    }
  }
}

std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction& function) {
  if (recorder == nullptr) return nullptr;
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  if (name == "aten::mm" && inputs.size() >= 2) {
    record_product(inputs[0].toTensor(), inputs[1].toTensor());
  } else if (name == "aten::sqrt" && !inputs.empty()) {
    // AdamW takes one square root, in double precision, for each tensor that it updates.
    const at::Tensor& root = inputs[0].toTensor();
    recorder->add({Event::Kind::kUpdate, 0, "", 4 * root.numel(), /*layer=*/-1, /*digest=*/0});
  }
  return nullptr;
}

// "digest of the weights 0123456789abcdef", the program's last line.
std::string printed_digest(const std::string& rows) {
  const std::string words = "digest of the weights ";
  const std::size_t place = rows.rfind(words);
  return place == std::string::npos ? "" : rows.substr(place + words.size(), 16);
}

}  // namespace

RankLog record(dist::Communicator& communicator, const dist::RankFunction& function) {
  recorder = std::make_unique<Recorder>(communicator);
  at::addThreadLocalCallback(at::RecordFunctionCallback(&on_operation)
                                 .needsInputs(true)
                                 .scopes({at::RecordScope::FUNCTION}));
  const std::string rows = function(communicator);
  at::clearThreadLocalCallbacks();
  RankLog log = recorder->take();
  recorder.reset();
  log.digest = printed_digest(rows);
  return log;
}

memory::Snapshot record_step() {
  const memory::Snapshot snapshot = memory::snapshot();
  if (recorder != nullptr) recorder->end_step(snapshot);
  return snapshot;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Event, kind, step, operation, bytes, layer, digest, input)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepBytes, held, peak, states_peak, sent)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLog, events, steps, digest)

std::string to_text(const RankLog& log) { return nlohmann::json(log).dump(); }
RankLog log_from_text(const std::string& text) {
  return nlohmann::json::parse(text).get<RankLog>();
}

}  // namespace zero::exercise
