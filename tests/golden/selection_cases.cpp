#include "golden/drivers.hpp"
#include "kvevict/selection/pool_selection.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"
#include "support/top_k.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy` selection_topk and selection_global. Each is run through the selection
// that all policies share, protected slots as pinned spans; single lanes also through select_top_k.
namespace kvevict_test {
namespace {

/// One lane of a case; slots behind `scores` do not exist.
struct Input {
  std::vector<float> scores;
  std::vector<bool> is_protected;

  [[nodiscard]] std::size_t num_protected() const {
    return static_cast<std::size_t>(std::count(is_protected.begin(), is_protected.end(), true));
  }
};

struct Outcome {
  std::vector<std::vector<int>> keep;  // [lanes][slots]
  std::size_t non_finite = 0;
  bool rejected = false;
};

/// Through the selection of all policies. `allocation` is in entries over lanes.
Outcome run(const std::vector<Input>& lanes, std::size_t num_layers,
            const kvevict::Allocation& allocation) {
  const std::size_t num_lanes = lanes.size();
  const kvevict::CacheShape shape{.num_layers = num_layers,
                                  .num_q_heads = num_lanes / num_layers,
                                  .num_kv_heads = num_lanes / num_layers,
                                  .head_dim = 1};
  Outcome outcome;
  // R15 counts heads that have entries.
  const auto num_used = static_cast<std::size_t>(std::count_if(
      lanes.begin(), lanes.end(), [](const Input& lane) { return !lane.scores.empty(); }));
  if (num_used > 0) {
    const kvevict::CacheShape used{
        .num_layers = 1, .num_q_heads = num_used, .num_kv_heads = num_used, .head_dim = 1};
    try {
      kvevict::detail::check_allocation(allocation, {}, used, "selection");
    } catch (const kvevict::InvalidArgument&) {
      outcome.rejected = true;
    }
  }
  // Pinned spans are of positions, the same in every lane; so the lanes are given tokens of their
  // own: slot s of lane l holds position s * num_lanes + l.
  std::size_t longest = 0;
  for (const Input& lane : lanes)
    longest = std::max(longest, lane.scores.size());
  std::vector<kvevict::PositionSpan> pinned;
  kvevict::KeepMask own_tokens;
  own_tokens.reset(kvevict::MaskScope::kHead, shape.num_layers, shape.num_kv_heads);
  std::vector<std::size_t> lengths;
  for (std::size_t l = 0; l < num_lanes; ++l) {
    const std::span<std::uint64_t> bits = own_tokens.add_lane(longest * num_lanes);
    for (std::size_t slot = 0; slot < lanes[l].scores.size(); ++slot) {
      const std::size_t position = slot * num_lanes + l;
      bits[position / 64] |= std::uint64_t{1} << (position % 64);
      if (lanes[l].is_protected[slot]) {
        const auto first = static_cast<kvevict::Position>(position);
        pinned.push_back({first, first + 1});
      }
    }
    lengths.push_back(lanes[l].scores.size());
  }
  kvevict::Sequence sequence("selection", shape, kvevict::MaskScope::kHead);
  sequence.begin(longest * num_lanes, pinned);
  sequence.append(longest * num_lanes);
  sequence.apply(own_tokens);

  const kvevict::views::ContiguousView view(shape, {}, {}, lengths);
  kvevict::PoolSelection pool;
  pool.run(
      sequence, kvevict::ViewRef(view), allocation, {},
      [&](kvevict::ScoredLane& lane, std::size_t) {
        const std::vector<float>& scores = lanes[lane.lane].scores;
        std::copy(scores.begin(), scores.end(), lane.scores.begin());
      },
      [](std::span<kvevict::ScoredLane>) {});
  outcome.rejected = outcome.rejected || pool.report().budget_not_reached;
  outcome.non_finite = pool.report().non_finite;
  for (std::size_t l = 0; l < num_lanes; ++l) {
    std::vector<int> keep(lengths[l]);
    for (std::size_t slot = 0; slot < keep.size(); ++slot) {
      keep[slot] = pool.mask().keeps(l / shape.num_kv_heads, l % shape.num_kv_heads, slot) ? 1 : 0;
    }
    outcome.keep.push_back(keep);
  }
  return outcome;
}

/// One lane, by itself; nothing where the protected slots exceed the quota.
std::optional<std::vector<int>> run_alone(const Input& input, std::size_t quota) {
  if (input.num_protected() > quota)
    return std::nullopt;
  std::vector<Lane> lanes = {Lane(input.scores)};
  for (std::size_t slot = 0; slot < input.scores.size(); ++slot) {
    if (input.is_protected[slot])
      lanes[0].protect(slot);
  }
  select(lanes, quota - input.num_protected());
  std::vector<int> keep(input.scores.size(), 0);
  for (const std::size_t slot : lanes[0].kept())
    keep[slot] = 1;
  return keep;
}

Input read_lane(const GoldenCase::Tensor& scores, const GoldenCase::Tensor& is_protected,
                std::size_t first, std::size_t length) {
  Input input;
  for (std::size_t i = first; i < first + length; ++i) {
    input.scores.push_back(static_cast<float>(scores.values[i]));
    input.is_protected.push_back(is_protected.values[i] != 0.0);
  }
  return input;
}

}  // namespace

void run_selection_topk(const GoldenCase& golden, GoldenReport& report) {
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const auto name = [&](const std::string& record) { return record + "." + std::to_string(i); };
    const auto& scores = golden.tensor(name("scores"));
    const Input lane = read_lane(scores, golden.tensor(name("protected")), 0, scores.values.size());
    const std::size_t budget = golden.count(name("budget"));
    const bool reject = golden.count(name("expect_reject")) != 0;
    const Outcome outcome = run({lane}, 1, {.budget = budget});
    const auto alone = run_alone(lane, budget);
    report.is_true(name("expect_reject"), outcome.rejected == reject && !alone == reject);
    if (reject)
      continue;
    report.equal(name("keep"), golden.tensor(name("keep")).values, outcome.keep[0]);
    report.equal(name("keep") + ", by select_top_k", golden.tensor(name("keep")).values, *alone);
    // The file counts all scores. The library reads the scores of slots that it may evict, and
    // those only where something has to go.
    std::size_t non_finite = golden.count(name("non_finite"));
    for (std::size_t slot = 0; slot < lane.scores.size(); ++slot) {
      const bool read =
          !lane.is_protected[slot] && budget < lane.scores.size() && lane.num_protected() < budget;
      if (!read && !std::isfinite(lane.scores[slot]))
        --non_finite;
    }
    report.is_true(name("non_finite"), outcome.non_finite == non_finite);
  }
}

void run_selection_global(const GoldenCase& golden, GoldenReport& report) {
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const auto name = [&](const std::string& record) { return record + "." + std::to_string(i); };
    const auto& scores = golden.tensor(name("scores"));
    const std::size_t num_layers = scores.shape[0];
    const std::size_t num_lanes = num_layers * scores.shape[1];
    const std::size_t capacity = scores.shape[2];
    std::vector<Input> lanes;
    for (std::size_t l = 0; l < num_lanes; ++l) {
      lanes.push_back(
          read_lane(scores, golden.tensor(name("protected")), l * capacity,
                    static_cast<std::size_t>(golden.tensor(name("lengths")).values[l])));
    }
    const bool reject = golden.count(name("expect_reject")) != 0;
    const std::string& kind = golden.text(name("kind"));
    Outcome outcome;
    if (kind == "global") {
      outcome = run(lanes, num_layers,
                    {.budget = kvevict::Budget::total(golden.count(name("total"))),
                     .competition = kvevict::Competition::kModel,
                     .min_keep = golden.count(name("min_keep"))});
    } else if (kind == "quota") {
      for (std::size_t l = 0; l < num_lanes; ++l) {
        const auto quota = static_cast<std::size_t>(golden.tensor(name("quotas")).values[l]);
        const auto keep = run_alone(lanes[l], quota);
        outcome.rejected = outcome.rejected || !keep;
        outcome.keep.push_back(keep.value_or(std::vector<int>{}));
      }
    } else {
      throw std::runtime_error(golden.path() + ": unknown " + name("kind") + " " + kind);
    }
    report.is_true(name("expect_reject"), outcome.rejected == reject);
    if (reject)
      continue;
    std::vector<int> keep;
    for (const std::vector<int>& lane : outcome.keep) {
      keep.insert(keep.end(), lane.begin(), lane.end());
      keep.insert(keep.end(), capacity - lane.size(), 0);  // slots that do not exist
    }
    report.equal(name("keep"), golden.tensor(name("keep")).values, keep);
  }
}

}  // namespace kvevict_test
