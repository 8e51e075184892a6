#pragma once

#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/base/sha256.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::testing {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

inline constexpr const char* kMode = "tensor_zero3";

// Flips a bit of the byte that lies at `where` of the file, from 0 to 1.
inline void flip_bit(const fs::path& path, double where) {
  std::string text = read_bytes(path);
  const auto byte = static_cast<std::size_t>(where * static_cast<double>(text.size()));
  text.at(byte) = static_cast<char>(text[byte] ^ (1 << (byte % 8)));
  std::ofstream(path, std::ios::binary) << text;
}
inline void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Two ranks, a folder that they share, and a checkpoint in it of step 1.
class OneCheckpoint : public ::testing::Test {
 protected:
  void on_two_ranks(const std::function<void(Session&)>& body) {
    on_ranks(2, [&](dist::Communicator& communicator) {
      Session session(communicator, kMode, options_);
      session.step(0);
      io::save_checkpoint(session.strategy(), good_, note(1, kMode));
      body(session);
    });
  }

  // Rank 0 alters a copy of the checkpoint; no rank may load it, or be changed by trying.
  void expect_refused(Session& session, const std::string& reason,
                      const std::function<void()>& damage) {
    dist::Communicator& communicator = session.communicator();
    if (communicator.rank() == 0) {
      fs::remove_all(bad_);
      fs::copy(good_, bad_, fs::copy_options::recursive);
      damage();
    }
    communicator.barrier();
    const WholeState before = local_state(session);
    EXPECT_THAT(refusal_of_loading(session, bad_), HasSubstr(reason));
    EXPECT_TRUE(same_state(local_state(session), before)) << reason << ": half-loaded";
    communicator.barrier();
  }

  // Goes on to step 2, so that loading step 1 would be seen, and shows that it can be loaded.
  void expect_good_one_loads(Session& session) {
    EXPECT_EQ(io::load_checkpoint(session.strategy(), good_).step, 1);
  }

  fs::path rank_file(int rank) const {
    return bad_ / "step-000000001" / fmt::format("rank-{:05}-of-00002.safetensors", rank);
  }

  // checkpoint.json with one change and a checksum that fits again, as another program would write
  // it.
  void rewrite_record(const std::function<void(nlohmann::json&)>& change) const {
    auto record = nlohmann::json::parse(read_bytes(bad_ / "checkpoint.json"));
    record.erase("sha256 of the rest");
    change(record);
    record["sha256 of the rest"] = base::Sha256().add(record.dump(1) + "\n").hex();
    write(bad_ / "checkpoint.json", record.dump(1) + "\n");
  }

  // The same for a rank's file and what the record says of it.
  void rewrite_file(
      int rank,
      const std::function<void(safetensors::NamedTensors&, safetensors::Metadata&)>& change) const {
    const fs::path path = rank_file(rank);
    {
      const safetensors::File file(path);
      safetensors::NamedTensors tensors;
      for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
      safetensors::Metadata metadata = file.metadata();
      change(tensors, metadata);
      safetensors::save(path, tensors, metadata);
    }
    const std::string bytes = read_bytes(path);
    rewrite_record([&](nlohmann::json& record) {
      record["files"][rank]["bytes"] = bytes.size();
      record["files"][rank]["sha256"] = base::Sha256().add(bytes).hex();
    });
  }

  SessionOptions options_ = checkpoint_options();
  TestFolder folder_;
  const fs::path good_ = folder_ / "good";
  const fs::path bad_ = folder_ / "bad";
};

}  // namespace zero::testing
