// A score that could change the method would be left out by a const select: it is an error instead.
// expected: must be const
#include "kvevict/policies/policy.hpp"

#include <algorithm>
#include <tuple>

struct OwnMethod {
  struct Options {};
  static constexpr std::string_view kName = "Own";
  static constexpr auto kRequiredInputs = kvevict::Inputs::kNothing;
  static constexpr auto kAttentionUse = kvevict::AttentionUse::kNone;
  OwnMethod(const Options& /*options*/, const kvevict::CacheShape& /*shape*/) {}
  [[nodiscard]] kvevict::MaskScope scope() const { return kvevict::MaskScope::kModel; }
  [[nodiscard]] kvevict::Trigger trigger() const { return kvevict::Trigger::kEveryStep; }
  [[nodiscard]] kvevict::Protection protection(const kvevict::Sequence& /*sequence*/) const {
    return {};
  }
  [[nodiscard]] kvevict::Allocation allocation(const kvevict::Sequence& /*sequence*/) const {
    return {.budget = 2};
  }
  [[nodiscard]] std::tuple<> state() { return {}; }
  void score(const kvevict::ScoreInput& /*input*/, std::size_t /*lane*/, std::span<float> out)
#ifndef KVEVICT_MUST_NOT_COMPILE
      const
#endif
  {
    std::fill(out.begin(), out.end(), 1.0F);
  }
};
static_assert(sizeof(kvevict::Policy<OwnMethod>) > 0);
