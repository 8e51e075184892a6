// What is not a whole checkpoint of this model is refused on every rank, with nothing changed.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <tests/support/error_of.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/sgd.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

class Refused : public OneCheckpoint {};

TEST_F(Refused, MissingAndShortAndForeignFiles) {
  on_two_ranks([&](Session& session) {
    session.step(1);
    expect_refused(session, "manifest.json: cannot be opened",
                   [&] { fs::remove(bad_ / "manifest.json"); });
    expect_refused(session, "rank-00001-of-00002.safetensors: cannot be opened",
                   [&] { fs::remove(rank_file(1)); });
    expect_refused(session, "it was cut short",
                   [&] { fs::resize_file(rank_file(1), fs::file_size(rank_file(1)) - 1); });
    expect_refused(session, "is empty", [&] { fs::resize_file(rank_file(0), 0); });
    expect_refused(session, "of another checkpoint", [&] {
      fs::copy_file(rank_file(0), rank_file(1), fs::copy_options::overwrite_existing);
    });
    expect_refused(session, "is not the manifest of a checkpoint",
                   [&] { write(bad_ / "manifest.json", "{\"name\": \"a web page\"}"); });
    expect_refused(session, "is not the manifest of a checkpoint", [&] {
      fs::resize_file(bad_ / "manifest.json", fs::file_size(bad_ / "manifest.json") / 2);
    });
    expect_refused(session, "was altered", [&] {
      fs::resize_file(bad_ / "manifest.json", fs::file_size(bad_ / "manifest.json") - 1);
    });
    expect_good_one_loads(session);
  });
}

TEST_F(Refused, FlippedBitsAnywhere) {
  on_two_ranks([&](Session& session) {
    session.step(1);
    for (int i = 0; i < 20; ++i) {
      const double where = i / 20.0 + 0.013;
      expect_refused(session, i % 20 == 0 ? "" : "manifest.json",
                     [&] { flip_bit(bad_ / "manifest.json", where); });
      for (const int rank : {0, 1}) {
        expect_refused(session, "was altered", [&] { flip_bit(rank_file(rank), where); });
      }
    }
    expect_good_one_loads(session);
  });
}

TEST_F(Refused, OtherVersionAndManifestsOfOtherPrograms) {
  on_two_ranks([&](Session& session) {
    expect_refused(session, "has format version 2, this program reads version 1",
                   [&] { rewrite_manifest([](nlohmann::json& m) { m["version"] = 2; }); });
    expect_refused(session, "is not the name of a file beside it",
                   [&] { rewrite_manifest([](nlohmann::json& m) { m["folder"] = "../good"; }); });
    expect_refused(session, "[7, 5] cannot be cut into 2 equal parts", [&] {
      rewrite_manifest([](nlohmann::json& m) {
        m["version"] = 2;
        m["parameters"][0]["cut"] = {{"dim", 0}, {"parts", 2}};
      });
    });
    expect_refused(session, "its shape", [&] {
      rewrite_manifest([](nlohmann::json& m) { m["parameters"][0]["runs"] = m["buffers"]; });
    });
    expect_refused(session, "is not what the manifest says", [&] {
      rewrite_manifest(
          [](nlohmann::json& m) { m["parameters"][0]["states"]["exp_avg"] = "Double"; });
    });
  });
}

TEST_F(Refused, ABufferThatIsNotWhatTheManifestSays) {
  on_two_ranks([&](Session& session) {
    at::Tensor buffer = session.model().register_buffer("mean", at::ones({2}));
    io::save_checkpoint(session.strategy(), good_, note(1, kMode));
    buffer.set_data(at::ones({3}));
    expect_refused(session, "'buffer/mean' is not what the manifest says", [&] {
      rewrite_manifest([](nlohmann::json& m) { m["buffers"][0]["shape"] = {3}; });
    });
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
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.width = 9; }), HasSubstr("[7, 5] Float"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfsg"; }), ::testing::IsEmpty())
        << "a unit that is used twice has no parameter more";
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfs"; }),
                HasSubstr("it is of another model"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.model.parts = "anfsgta"; }),
                HasSubstr("the checkpoint has none"));
    EXPECT_THAT(refusal([](SessionOptions& o) { o.optimizer = optim::sgd(); }),
                HasSubstr("its optimizer is AdamW, that of this run SGD"));
  });
}

TEST_F(Refused, AnotherDtypeUnlessAskedFor) {
  on_two_ranks([&](Session& session) {
    const WholeState saved = whole_state(session);
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
      const std::string type = c10::toString(dtype);
      SessionOptions options = checkpoint_options();
      options.model.dtype = dtype;
      Session other(session.communicator(), "zero1", options);
      EXPECT_THAT(refusal_of_loading(other, good_),
                  HasSubstr("is Float in the checkpoint and " + type + " in the model"));
      io::load_checkpoint(other.strategy(), good_, {.convert_dtype = true});
      // Parameters and moments are rounded to the new type, once; states are compared in double.
      for (const auto& [name, tensor] : whole_state(other)) {
        EXPECT_TRUE(at::equal(tensor, saved.at(name).to(dtype).to(tensor.scalar_type())))
            << type << ": " << name;
      }
      other.step(1);
    }
  });
}

// A run with master weights has a state that a float32 run lacks: to ask for another dtype is not
// to ask for another optimizer.
TEST_F(Refused, AFloat32RunForMasterWeightsEvenIfAnotherDtypeIsAskedFor) {
  on_two_ranks([&](Session& session) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      SessionOptions options = checkpoint_options();
      options.model.dtype = dtype;
      options.optimizer = optim::with_master_weights(optim::adamw());
      Session other(session.communicator(), kMode, options);
      const WholeState before = whole_state(other);
      EXPECT_THAT(
          error_of([&] { io::load_checkpoint(other.strategy(), good_, {.convert_dtype = true}); }),
          HasSubstr("AdamW, that of this run AdamW with master weights"))
          << c10::toString(dtype);
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
