#include "pipeline_passes.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero {

using dist::Purpose;
using Kind = PipelineAction::Kind;

// The passes of one step through this stage.
class PipelinePasses::Run {
 public:
  // `step`: null if there is no backward.
  Run(PipelinePasses& passes, train::Step* step, const std::vector<MicroBatch>& batches)
      : stage_(passes.stage_),
        strategy_(passes.strategy_),
        step_(step),
        pipeline_(passes.pipeline_),
        batches_(batches),
        passes_(batches.size()),
        graphs_(batches.size()),
        losses_(batches.size(), at::zeros({})) {}

  void forward(const PipelineAction& action) {
    const MicroBatch& batch = batches_[at(action)];
    auto& pass = passes_[at(action)];
    pass = c10::make_intrusive<StagePass>();
    wait_for(sends_, 1);
    if (action.receive_from != PipelineAction::kNone) {
      pass->input = receive(batch, action.receive_from);
      pass->input.set_requires_grad(c10::GradMode::is_enabled());
    }
    stage_.set_pass(pass);
    at::Tensor loss = forward_of(batch);
    if (stage_.is_last()) losses_[at(action)] = loss.detach();
    if (action.send_to != PipelineAction::kNone) {
      sends_.push_back(send(std::exchange(pass->output, at::Tensor()), action.send_to));
    }
    if (c10::GradMode::is_enabled()) {
      graphs_[at(action)] = std::move(loss);
    } else {
      pass.reset();  // no backward will need it
    }
  }

  // `is_last`: this is the last action of the step, so gradients are reduced.
  void backward(const PipelineAction& action, double all_terms, bool is_last) {
    auto& pass = passes_[at(action)];
    wait_for(sends_, 1);
    if (action.receive_from != PipelineAction::kNone) {
      pass->output_gradient = receive(batches_[at(action)], action.receive_from);
    }
    at::Tensor loss = std::exchange(graphs_[at(action)], at::Tensor());
    // The other stages receive gradients that are weighted already.
    if (stage_.is_last()) {
      const auto terms = static_cast<double>(batches_[at(action)].loss_terms);
      loss = step_->weighted(loss, terms, all_terms);
    }
    step_->backward(std::move(loss), is_last && !keeps_head());
    const bool embeds = stage_.is_first() && stage_.is_tied();
    const int to = embeds ? stage_.stages() - 1 : action.send_to;
    at::Tensor gradient;
    if (to != PipelineAction::kNone) gradient = pass->input.grad().contiguous();
    pass->input = at::Tensor();
    if (!keeps_head()) pass.reset();  // before the waits below, so that its memory is free
    // The last stage receives the gradient of the embedding's output late. So up to stages()
    // earlier ones may stay in flight.
    if (embeds) wait_for(tied_sends_, static_cast<std::size_t>(stage_.stages()));
    if (gradient.defined())
      (embeds ? tied_sends_ : sends_).push_back(send(std::move(gradient), to));
    if (keeps_head()) add_tied_gradients(action, is_last);
  }

  /// Blocks until everything that this stage has sent has been received. Returns the losses of the
  /// micro-batches; zeros in stages other than the last.
  const std::vector<at::Tensor>& finish() {
    wait_for(sends_, 0);
    wait_for(tied_sends_, 0);
    stage_.set_pass({});
    return losses_;
  }

 private:
  using Sends = std::deque<dist::Work>;

  static std::size_t at(const PipelineAction& action) {
    return static_cast<std::size_t>(action.micro_batch);
  }

  // Whether a pass is kept after backward: it has the head's factors for the tied gradient.
  bool keeps_head() const { return stage_.is_tied() && stage_.is_last(); }

  // The last stage, after the backward `done`: both parts of the gradient of the weight that
  // it shares, in the order of the whole model, ((head 0 + embedding 0) + head 1) + … The
  // embedding's part comes when backward has passed all stages, so as many micro-batches later.
  void add_tied_gradients(const PipelineAction& done, bool is_last) {
    const std::size_t wait = is_last ? 0 : static_cast<std::size_t>(stage_.stages() - 1);
    for (; tied_ + wait <= at(done); ++tied_) {
      auto pass = std::exchange(passes_[tied_], {});
      pass->output_gradient = receive(batches_[tied_], 0);
      pass->adds_tied_gradient = true;
      stage_.set_pass(pass);
      step_->backward(forward_of(batches_[tied_]), is_last && tied_ == at(done));
    }
  }

  at::Tensor forward_of(const MicroBatch& batch) {
    return strategy_.forward([&] { return stage_.loss(batch); }, batch.loss_terms);
  }

  at::Tensor receive(const MicroBatch& batch, int from) const {
    const memory::Charge charge(memory::Category::kActivations);
    at::Tensor tensor = stage_.empty_activations(batch);
    pipeline_.recv(tensor, from, Purpose::kActivation).wait();
    return tensor;
  }

  dist::Work send(at::Tensor tensor, int to) const {
    return pipeline_.send(std::move(tensor), to, Purpose::kActivation);
  }

  // Waits for the oldest sends until at most `left` are in flight. A send holds its tensor, so one
  // is left: with none, two neighbours that have both sent would wait for each other.
  static void wait_for(Sends& sends, std::size_t left) {
    for (; sends.size() > left; sends.pop_front()) sends.front().wait();
  }

  LlamaStage& stage_;
  train::Strategy& strategy_;
  train::Step* step_;
  dist::Communicator& pipeline_;
  const std::vector<MicroBatch>& batches_;
  std::vector<c10::intrusive_ptr<StagePass>> passes_;  // by micro-batch
  std::vector<at::Tensor> graphs_;                     // what their forward returned
  std::vector<at::Tensor> losses_;                     // of one element
  Sends sends_;                                        // to neighbours
  Sends tied_sends_;      // from stage 0 to the last, if the embedding is the head
  std::size_t tied_ = 0;  // the next micro-batch of add_tied_gradients()
};

PipelinePasses::PipelinePasses(LlamaStage& stage, train::Strategy& strategy,
                               PipelineSchedule schedule)
    : stage_(stage),
      strategy_(strategy),
      pipeline_(strategy.mesh().pipeline()),
      schedule_(schedule) {
  const dist::CallScope call(strategy.mesh().world(), "PipelinePasses::PipelinePasses");
  dist::verify_same(strategy.mesh().world(), "the pipeline",
                    fmt::format("{} stages, schedule {}\n{}{}\nmodel {}", stage_.stages(),
                                name(schedule_), strategy.mesh().text(),
                                stage_.tensor_parallel().cuts_sequence() ? ", sequence cut" : "",
                                nn::to_hugging_face_json(stage_.config()).dump()));
  verify_strategy();
}

void PipelinePasses::verify_strategy() {
  if (strategy_.mesh().any(pipeline_.size() != stage_.stages() ||
                           pipeline_.rank() != stage_.stage() || &strategy_.module() != &stage_)) {
    throw Error(
        fmt::format("this rank has stage {} of {} and is rank {} of {} on the pipeline axis: on "
                    "every rank, the "
                    "stage must equal the rank on the pipeline axis, the number of stages must "
                    "equal the size of "
                    "that axis, and the strategy must be made for this stage",
                    stage_.stage(), stage_.stages(), pipeline_.rank(), pipeline_.size()));
  }
  if (!stage_.is_tied()) return;
  const at::Tensor& weight = stage_.shared_weight();
  if (strategy_.mesh().any(stage_.is_last() && !weight.requires_grad())) {
    throw Error(
        "the embedding, which the first and the last stage share, is frozen: leave it trainable, "
        "or take a model with a head of its own (tie_word_embeddings false), whose embedding may "
        "be frozen");
  }
  const bool is_whole = !weight.defined() || memory::has_storage(weight);
  if (strategy_.mesh().any(!is_whole || strategy_.reduces_each())) {
    throw Error(
        "the first and the last stage share the embedding: the strategy must keep parameters whole "
        "(stages 0 to 2) and add up micro-batches before it reduces them; else take a model with a "
        "head of its own (tie_word_embeddings false)");
  }
}

std::vector<double> PipelinePasses::run(train::Step& step,
                                        const std::vector<MicroBatch>& micro_batches,
                                        double all_terms, const std::function<void(Kind)>& ended) {
  const auto count = static_cast<int>(micro_batches.size());
  const StageActions actions = stage_actions(schedule_, stage_.stage(), stage_.stages(), count);
  Run run(*this, &step, micro_batches);
  for (const PipelineAction& action : actions) {
    const bool is_last = &action == &actions.back();
    if (action.kind == Kind::kForward) {
      RECORD_USER_SCOPE("forward");
      run.forward(action);
      ended(action.kind);
      continue;
    }
    RECORD_USER_SCOPE("backward");
    run.backward(action, all_terms, is_last);
    ended(action.kind);
  }
  return strategy_.averaged_gradients().read(run.finish());
}

void PipelinePasses::sync_parameters() {
  strategy_.sync_parameters();
  const at::Tensor& weight = stage_.shared_weight();
  if (!weight.defined()) return;
  // The weight is in the root unit; `whole` waits for the strategy's own transfers.
  const train::UnshardedParameters whole(strategy_, 0);
  const at::Tensor bytes = memory::raw(weight);
  if (stage_.is_last()) {
    pipeline_.send(bytes, 0, Purpose::kParameter).wait();
  } else {
    pipeline_.recv(bytes, stage_.stages() - 1, Purpose::kParameter).wait();
  }
}

std::vector<double> PipelinePasses::run_forward(const std::vector<MicroBatch>& batches) {
  Run run(*this, nullptr, batches);
  for (const PipelineAction& action :
       stage_actions(PipelineSchedule::kGPipe, stage_.stage(), stage_.stages(),
                     static_cast<int>(batches.size()))) {
    if (action.kind == Kind::kForward) run.forward(action);
  }
  return strategy_.averaged_gradients().read(run.finish(), /*with_norms=*/false);
}

std::int64_t pipeline_bytes(const LlamaStage& stage, const std::vector<MicroBatch>& micro_batches) {
  std::int64_t activations = 0;  // A, of all micro-batches
  for (const MicroBatch& batch : micro_batches) activations += stage.activation_bytes(batch);
  const bool sends_back = !stage.is_first() || stage.is_tied();
  const bool sends_weight = stage.is_tied() && stage.is_last();
  return (stage.is_last() ? 0 : activations) + (sends_back ? activations : 0) +
         (sends_weight ? static_cast<std::int64_t>(stage.shared_weight().nbytes()) : 0);
}

}  // namespace zero
