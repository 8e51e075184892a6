#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <tests/support/ranks.hpp>

#include "accelerator.hpp"
#include "backend.hpp"
#include "checker.hpp"

namespace zero::testing::emulated {

/// The findings as lines, for messages.
inline std::string text_of(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& finding : findings) all += finding.text + "\n";
  return all;
}

/// A test on the emulated accelerator. What the checker finds fails it, unless the test has taken
/// it.
class EmulatedTest : public ::testing::Test {
 protected:
  EmulatedTest() {
    enable();
    Checker::get().take_findings();
  }
  ~EmulatedTest() override {
    Checker::get().throw_at_once(false);
    const auto left = Checker::get().take_findings();
    EXPECT_TRUE(left.empty()) << text_of(left);
  }

  static c10::Stream new_stream() {
    return c10::impl::VirtualGuardImpl(kDevice.type()).getNewStream(kDevice);
  }
  static c10::Stream current() {
    return c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice);
  }
  /// Later work of `later` runs behind the work that `earlier` has by now.
  static void order(c10::Stream earlier, c10::Stream later) {
    c10::Event event(kDevice.type());
    event.record(earlier);
    event.block(later);
  }
};

/// Expects one finding of this kind, whose text has all of `words`.
inline void expect_found(Fault fault, const std::vector<std::string>& words) {
  const auto findings = Checker::get().take_findings();
  ASSERT_EQ(findings.size(), 1U) << text_of(findings);
  EXPECT_EQ(findings[0].fault, fault) << findings[0].text;
  for (const std::string& word : words) {
    EXPECT_THAT(findings[0].text, ::testing::HasSubstr(word));
  }
}

inline void expect_clean() {
  const auto findings = Checker::get().take_findings();
  EXPECT_TRUE(findings.empty()) << text_of(findings);
}

/// As on_ranks(), for ranks that have the emulated device and its process group. What the checker
/// finds on a rank fails the test, too. One rank uses the process group if it `works_alone`.
inline void on_emulated_ranks(RankOptions options,
                              const std::function<void(dist::Communicator&)>& body,
                              bool works_alone = false) {
  enable_backend({}, works_alone);
  options.backend = "emulated";
  on_ranks(options, [&](dist::Communicator& communicator) {
    body(communicator);
    expect_clean();
  });
}

}  // namespace zero::testing::emulated
