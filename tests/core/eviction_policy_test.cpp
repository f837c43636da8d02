#include "kvevict/core/eviction_policy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace kvevict {
namespace {

/// The least that is a policy, written without the library's driver.
template <AttentionUse kUse, Inputs kInputs>
class MinimalPolicy {
 public:
  static constexpr std::string_view kName = "Minimal";
  static constexpr Inputs kRequiredInputs = kInputs;
  static constexpr AttentionUse kAttentionUse = kUse;

  void begin(std::size_t, std::span<const PositionSpan>) {}
  void append(std::size_t) {}
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t) const { return 0; }
  [[nodiscard]] bool wants_hidden(std::size_t) const { return false; }
  void end_prefill(const ViewRef&) {}
  [[nodiscard]] bool should_evict() const { return false; }
  [[nodiscard]] const KeepMask& select(const ViewRef&) const { return mask_; }
  void apply(const KeepMask&) {}
  void truncate(std::size_t) {}
  void reset() {}
  [[nodiscard]] std::size_t length() const { return 0; }
  [[nodiscard]] const Sequence& sequence() const { return sequence_; }
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  Sequence sequence_{kName, {1, 1, 1, 1}, MaskScope::kModel};
  KeepMask mask_;
  Counters counters_;
};

using Windowed = MinimalPolicy<AttentionUse::kWindow, Inputs::kAttention | Inputs::kValues>;
using Greedy = MinimalPolicy<AttentionUse::kAllRows, Inputs::kAttention>;

/// Cannot be told that its mask was executed.
class WithoutApply : public Greedy {
 public:
  void apply(const KeepMask&) = delete;
};

/// Cannot be forked.
class NotCopyable : public Greedy {
 public:
  NotCopyable() = default;
  NotCopyable(const NotCopyable&) = delete;
};

TEST(EvictionPolicy, IsAConceptThatNeedsNoBaseClass) {
  EXPECT_TRUE((EvictionPolicy<Windowed>));
  EXPECT_FALSE((EvictionPolicy<WithoutApply>));
  EXPECT_FALSE((EvictionPolicy<NotCopyable>));
  EXPECT_FALSE((EvictionPolicy<int>));
}

TEST(EvictionPolicy, SaysWhetherAnEngineCanServeIt) {
  EXPECT_TRUE((PolicyForInputs<Windowed, Inputs::kAttention | Inputs::kKeys | Inputs::kValues>));
  EXPECT_FALSE((PolicyForInputs<Windowed, Inputs::kAttention>));
}

TEST(EvictionPolicy, OnlyAllRowsAreOutOfReachOfFusedAttention) {
  EXPECT_TRUE(is_flash_attention_compatible<Windowed>);
  EXPECT_FALSE(is_flash_attention_compatible<Greedy>);
  EXPECT_TRUE(
      (is_flash_attention_compatible<MinimalPolicy<AttentionUse::kLastRow, Inputs::kAttention>>));
}

}  // namespace
}  // namespace kvevict
