// What is not a whole checkpoint of this model is refused on every rank, with nothing changed.
#include <ATen/ops/ones.h>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

class Refused : public OneCheckpoint {};

TEST_F(Refused, MissingAndShortAndForeignFiles) {
  on_two_ranks([&](Session& session) {
    session.step(1);
    expect_refused(session, "checkpoint.json: cannot be opened",
                   [&] { fs::remove(bad_ / "checkpoint.json"); });
    expect_refused(session, "rank-00001-of-00002.safetensors: cannot be opened",
                   [&] { fs::remove(rank_file(1)); });
    expect_refused(session, "it was cut short",
                   [&] { fs::resize_file(rank_file(1), fs::file_size(rank_file(1)) - 1); });
    expect_refused(session, "is empty", [&] { fs::resize_file(rank_file(0), 0); });
    expect_refused(session, "of another checkpoint", [&] {
      fs::copy_file(rank_file(0), rank_file(1), fs::copy_options::overwrite_existing);
    });
    expect_refused(session, "is not of a checkpoint",
                   [&] { write(bad_ / "checkpoint.json", "{\"name\": \"a web page\"}"); });
    expect_refused(session, "is not of a checkpoint", [&] {
      fs::resize_file(bad_ / "checkpoint.json", fs::file_size(bad_ / "checkpoint.json") / 2);
    });
    expect_refused(session, "was altered", [&] {
      fs::resize_file(bad_ / "checkpoint.json", fs::file_size(bad_ / "checkpoint.json") - 1);
    });
    expect_good_one_loads(session);
  });
}

TEST_F(Refused, OtherVersionsAndRecordsOfOtherPrograms) {
  on_two_ranks([&](Session& session) {
    const auto refused_after = [&](const auto& change, const std::string& reason) {
      expect_refused(session, reason, [&] { rewrite_record(change); });
    };
    refused_after([](auto& r) { r["version"] = 3; },
                  "has format version 3, this program reads version 2");
    refused_after([](auto& r) { r["version"] = 1; }, "version 2: load it with its own release");
    refused_after([](auto& r) { r["folder"] = "../good"; }, "is not the name of a file beside it");
    refused_after([](auto& r) { r["files"][0]["name"] = "../a"; },
                  "'../a' is not the name of a file beside it");
  });
}

using FileChange = std::function<void(safetensors::NamedTensors&, safetensors::Metadata&)>;

// The file says something else of the tensors whose names begin so, and of which it has the rest.
FileChange say(const std::string& of, const char* key, const nlohmann::json& value) {
  return [=](safetensors::NamedTensors&, safetensors::Metadata& metadata) {
    for (auto& [name, text] : metadata) {
      if (!name.starts_with(of)) continue;
      auto about = nlohmann::json::parse(text);
      if (about["begin"] > 0) about[key] = value;
      text = about.dump();
    }
  };
}

// The place of its first element moves.
FileChange shift(const std::string& of, int by) {
  return [=](safetensors::NamedTensors& tensors, safetensors::Metadata& metadata) {
    for (auto& [name, text] : metadata) {
      if (!name.starts_with(of)) continue;
      const std::int64_t begin = nlohmann::json::parse(text)["begin"];
      safetensors::Metadata one = {{name, text}};
      say(of, "begin", begin + by)(tensors, one);
      text = one[name];
    }
  };
}

// What fits all checksums, as only another program would write it.
TEST_F(Refused, FilesThatTogetherAreNoModel) {
  const std::string not_it = "is not what its metadata say";
  const std::vector<std::pair<FileChange, std::string>> rows = {
      {shift("parameter/", -1), "are in several files"},
      {shift("parameter/", 1), not_it},  // beyond the end
      {shift("exp_avg_sq/", -1), "of 'exp_avg_sq/"},
      {say("parameter/", "steps", 2), "after 2 updates, in a file before it "},
      {say("parameter/", "steps", -1), not_it},
      {say("parameter/", "parts", 2), not_it},
      {say("parameter/", "part", 1), not_it},
      {say("parameter/", "dim", "none"), not_it},
      {say("parameter/", "shape", {128, -5}), not_it},
      {say("parameter/", "shape", {std::int64_t{1} << 62, 1 << 20}), not_it},
      {say("exp_avg/", "shape", {640}),
       "[640] Float after 1 updates, in a file before it [128, 5]"},
      {[](auto&, auto& metadata) { metadata.clear(); }, not_it},
      {[](auto& tensors, auto&) {
         for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kDouble);
       },
       "Double after 1 updates, in a file before it "},
      {[](auto& tensors, auto&) { tensors.resize(0); }, "are in no file"},
      {[](auto& tensors, auto&) {
         std::erase_if(tensors, [](const auto& t) { return t.first.starts_with("exp_avg/"); });
       },
       "of 'exp_avg/"}};
  options_.model.width = 128;
  on_two_ranks([&](Session& session) {
    for (const auto& [change, reason] : rows) {
      expect_refused(session, reason, [&] { rewrite_file(1, change); });
    }
    expect_refused(session, "are in no file",
                   [&] { rewrite_record([](auto& record) { record["files"].erase(1); }); });
    expect_good_one_loads(session);
  });
}

TEST_F(Refused, ABufferOfAnotherShape) {
  on_two_ranks([&](Session& session) {
    at::Tensor buffer = session.model().register_buffer("mean", at::ones({2}));
    io::save_checkpoint(session.strategy(), good_, note(1, kMode));
    buffer.set_data(at::ones({3}));
    expect_refused(session, "\"mean\" has the shape [2], the model's is [3]", [] {});
  });
}

TEST_F(Refused, AnotherModelOrOptimizerOrDtype) {
  on_two_ranks([&](Session& session) {
    const auto refusal = [&](const std::function<void(SessionOptions&)>& change) {
      SessionOptions options = checkpoint_options();
      change(options);
      Session other(session.communicator(), kMode, options);
      const WholeState before = whole_state(other);
      const std::string message = refusal_of_loading(other, good_);
      if (!message.empty()) {
        EXPECT_TRUE(same_state(whole_state(other), before)) << message;
      }
      return message;
    };
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.width = 9; }),
                HasSubstr("has the shape [7, 5], the model's is [9, 5]"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfsg"; }), ::testing::IsEmpty())
        << "a unit that is used twice has no parameter more";
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfs"; }),
                HasSubstr("it is of another model"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfsgta"; }),
                HasSubstr("is missing; the model has it"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.optimizer = sgd(); }),
                HasSubstr("its optimizer is AdamW, that of this run torch SGD"));
  });
}

TEST_F(Refused, AnotherDtype) {
  on_two_ranks([&](Session& session) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
      const std::string type = c10::toString(dtype);
      SessionOptions options = checkpoint_options();
      options.model.dtype = dtype;
      Session other(session.communicator(), "zero1", options);
      const WholeState before = whole_state(other);
      EXPECT_THAT(refusal_of_loading(other, good_),
                  HasSubstr("is Float in the checkpoint and " + type +
                            " in the model: begin a run "
                            "from its weights, which load_weights() converts"));
      EXPECT_TRUE(same_state(whole_state(other), before)) << "half-loaded";
    }
  });
}

TEST_F(Refused, RanksThatSeeDifferentCheckpoints) {
  on_two_ranks([&](Session& session) {
    const int rank = session.communicator().rank();
    session.step(1);
    io::save_checkpoint(session.strategy(), folder_ / "other", note(2, kMode));
    const WholeState before = whole_state(session);
    EXPECT_THAT(refusal_of_loading(session, rank == 0 ? good_ : folder_ / "other"),
                HasSubstr("rank 0 and rank 1 see different checkpoints"));
    EXPECT_THAT(refusal_of_loading(session, rank == 0 ? good_ : folder_ / "nowhere"),
                HasSubstr("rank 1: "));
    EXPECT_TRUE(same_state(whole_state(session), before));
  });
}

}  // namespace
}  // namespace zero::testing
