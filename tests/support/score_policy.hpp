#ifndef KVEVICT_TESTS_SUPPORT_SCORE_POLICY_HPP_
#define KVEVICT_TESTS_SUPPORT_SCORE_POLICY_HPP_

#include "kvevict/core/slot_array.hpp"
#include "kvevict/policies/policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace kvevict_test {

struct TableScoreOptions {
  kvevict::Budget budget = 1024;
  kvevict::MaskScope scope = kvevict::MaskScope::kModel;
  kvevict::Trigger trigger = kvevict::Trigger::kEveryStep;
  kvevict::Competition competition = kvevict::Competition::kLane;
  std::size_t min_keep = 0;
  kvevict::Protection protection = {};
  /// [lanes][positions], or one row for all lanes; positions behind the end score 0.
  std::vector<std::vector<float>> scores = {{}};
};

/// A policy whose scores a test writes down. A token gets its score when observe_cache sees it and
/// keeps it in a slot of its own: the state of the simplest policy that has one.
class TableScoreMethod {
 public:
  using Options = TableScoreOptions;
  static constexpr std::string_view kName = "TableScore";
  static constexpr kvevict::Inputs kRequiredInputs = kvevict::Inputs::kNothing;
  static constexpr kvevict::AttentionUse kAttentionUse = kvevict::AttentionUse::kNone;

  TableScoreMethod(const Options& options, const kvevict::CacheShape& shape)
      : options_(std::make_shared<const Options>(options)), scores_(shape, options.scope) {}

  [[nodiscard]] kvevict::MaskScope scope() const noexcept { return options_->scope; }
  [[nodiscard]] kvevict::Trigger trigger() const noexcept { return options_->trigger; }
  [[nodiscard]] kvevict::Protection protection(const kvevict::Sequence& /*sequence*/) const {
    return options_->protection;
  }
  [[nodiscard]] kvevict::Allocation allocation(const kvevict::Sequence& /*sequence*/) const {
    return {.budget = options_->budget,
            .competition = options_->competition,
            .min_keep = options_->min_keep};
  }
  [[nodiscard]] auto state() noexcept { return std::tie(scores_); }

  std::size_t observe_cache(const kvevict::ScoreInput& input) {
    std::size_t non_finite = 0;
    for (std::size_t lane = 0; lane < input.sequence.num_lanes(); ++lane) {
      const std::vector<float>& table = options_->scores[options_->scores.size() == 1 ? 0 : lane];
      const std::span<float> scores = scores_.at(lane);
      for (std::size_t i = scores.size() - input.sequence.step_len(); i < scores.size(); ++i) {
        const auto position = static_cast<std::size_t>(input.sequence.position(lane, i));
        scores[i] = position < table.size() ? table[position] : 0.0F;
        non_finite += std::isfinite(scores[i]) ? 0 : 1;
      }
    }
    return non_finite;
  }
  void score(const kvevict::ScoreInput& /*input*/, std::size_t lane, std::span<float> out) const {
    std::copy(scores_.at(lane).begin(), scores_.at(lane).end(), out.begin());
  }

  [[nodiscard]] std::vector<float> scores(std::size_t lane = 0) const {
    return {scores_.at(lane).begin(), scores_.at(lane).end()};
  }

 private:
  std::shared_ptr<const Options> options_;
  kvevict::SlotArray scores_;
};

using TableScore = kvevict::Policy<TableScoreMethod>;
static_assert(kvevict::EvictionPolicy<TableScore>);

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_SCORE_POLICY_HPP_
