#ifndef KVEVICT_TESTS_GOLDEN_STEP_LOGITS_HPP_
#define KVEVICT_TESTS_GOLDEN_STEP_LOGITS_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Cases whose attention comes as logits for every position, of which a row is the softmax over
// those that are still cached.
namespace kvevict_test {

/// A cache whose lanes may go apart. The key of position p is the unit vector e_p, so a query that
/// holds logits meets them as dot products, and the cache itself says which token a slot holds.
class PositionCache {
 public:
  /// @param shape   head_dim is the number of positions
  /// @param values  [num_layers, num_kv_heads, positions, dim <= head_dim]; absent: zeros
  explicit PositionCache(const kvevict::CacheShape& shape,
                         std::optional<GoldenCase::Tensor> values = std::nullopt)
      : shape_(shape),
        keys_(shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.head_dim),
        values_(keys_.size()),
        lengths_(shape.num_layers * shape.num_kv_heads),
        inputs_(std::move(values)) {}

  [[nodiscard]] const kvevict::CacheShape& shape() const { return shape_; }
  [[nodiscard]] kvevict::views::ContiguousView view() {
    const auto tensor = [&](std::vector<float>& rows) {
      return kvevict::views::Tensor::hnd(rows.data(), kvevict::ElementType::kF32, shape_.head_dim,
                                         shape_.num_kv_heads, shape_.head_dim);
    };
    return {shape_, tensor(keys_), tensor(values_), lengths_};
  }
  void append(std::size_t count) {
    for (; count > 0; --count, ++length_) {
      if (length_ >= shape_.head_dim)
        throw std::runtime_error("more tokens than positions");
      for (std::size_t lane = 0; lane < lengths_.size(); ++lane) {
        const std::size_t row = (lane * shape_.head_dim + lengths_[lane]++) * shape_.head_dim;
        std::fill_n(keys_.begin() + static_cast<std::ptrdiff_t>(row), shape_.head_dim, 0.0F);
        keys_[row + length_] = 1.0F;
        if (!inputs_)
          continue;
        const std::size_t dim = inputs_->shape.at(3);
        for (std::size_t c = 0; c < dim; ++c) {
          values_[row + c] = static_cast<float>(
              inputs_->values.at((lane * inputs_->shape.at(2) + length_) * dim + c));
        }
      }
    }
  }
  /// Executes the mask.
  void evict(const kvevict::KeepMask& mask) {
    kvevict::compact(view(), mask);
    for (std::size_t lane = 0; lane < lengths_.size(); ++lane) {
      lengths_[lane] = mask.count(lane / shape_.num_kv_heads, lane % shape_.num_kv_heads);
    }
  }
  /// [seq_len] position of each slot, read from the keys.
  [[nodiscard]] std::vector<std::size_t> positions(std::size_t layer, std::size_t head) const {
    const std::size_t lane = layer * shape_.num_kv_heads + head;
    std::vector<std::size_t> positions;
    for (std::size_t slot = 0; slot < lengths_[lane]; ++slot) {
      const auto row = keys_.begin() + static_cast<std::ptrdiff_t>((lane * shape_.head_dim + slot) *
                                                                   shape_.head_dim);
      const auto end = row + static_cast<std::ptrdiff_t>(shape_.head_dim);
      positions.push_back(static_cast<std::size_t>(std::find(row, end, 1.0F) - row));
    }
    return positions;
  }

 private:
  kvevict::CacheShape shape_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::size_t> lengths_;
  std::optional<GoldenCase::Tensor> inputs_;
  std::size_t length_ = 0;
};

/// Where a policy's attention comes from.
enum class RowSource : std::uint8_t { kRows, kQueries };

/// Softmax of `logits` [positions] over those in `positions`, by slot.
[[nodiscard]] inline std::vector<float> softmax_over(const double* logits,
                                                     const std::vector<std::size_t>& positions) {
  double largest = logits[positions.at(0)];
  for (const std::size_t position : positions)
    largest = std::max(largest, logits[position]);
  double sum = 0;
  for (const std::size_t position : positions)
    sum += std::exp(logits[position] - largest);
  std::vector<float> row;
  for (const std::size_t position : positions) {
    row.push_back(static_cast<float>(std::exp(logits[position] - largest) / sum));
  }
  return row;
}

/// Hands the newest `num_rows` rows of a layer over. `logits(q_head, row)` is [positions].
template <class P, class Logits>
void hand_over_rows(P& policy, PositionCache& cache, std::size_t layer, std::size_t num_rows,
                    RowSource source, Logits&& logits) {
  const kvevict::CacheShape& shape = cache.shape();
  std::vector<float> rows;
  const std::size_t width = shape.head_dim;  // positions, at least as many as slots
  for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
    std::vector<std::size_t> positions = cache.positions(layer, head / shape.group_size());
    const std::size_t seq_len = positions.size();
    for (std::size_t r = 0; r < num_rows; ++r) {
      std::vector<float> row;
      if (source == RowSource::kRows) {
        std::vector<std::size_t> visible = positions;
        visible.resize(seq_len - (num_rows - 1 - r));
        row = softmax_over(logits(head, r), visible);
      } else {
        row.assign(logits(head, r), logits(head, r) + width);
      }
      row.resize(width);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  const auto row_stride = static_cast<std::ptrdiff_t>(width);
  const auto head_stride = static_cast<std::ptrdiff_t>(num_rows) * row_stride;
  if (source == RowSource::kRows) {
    policy.observe_attention(layer, {.data = rows.data(),
                                     .num_q_heads = shape.num_q_heads,
                                     .num_rows = num_rows,
                                     .head_stride = head_stride,
                                     .row_stride = row_stride});
  } else {
    policy.observe_queries(layer,
                           {.data = rows.data(),
                            .num_q_heads = shape.num_q_heads,
                            .num_rows = num_rows,
                            .head_stride = head_stride,
                            .row_stride = row_stride,
                            .scale = 1.0F},
                           cache.view());
  }
}

/// A case's logits of a prompt, prefill_logits [num_q_heads, num_prompt, num_prompt], whose row t
/// uses 0..t, and of what is decoded behind it, logits [steps, num_q_heads, positions].
class PromptLogits {
 public:
  explicit PromptLogits(const GoldenCase& golden)
      : prompt_len_(golden.count("num_prompt")),
        shape_{.num_layers = 1,
               .num_q_heads = golden.count("num_q_heads"),
               .num_kv_heads = golden.count("num_kv_heads"),
               .head_dim = golden.tensor("logits").shape.at(2)},
        rows_(shape_.num_q_heads * num_positions() * num_positions()) {
    const std::vector<double>& prompt = golden.tensor("prefill_logits").values;
    const std::vector<double>& decoded = golden.tensor("logits").values;
    for (std::size_t head = 0; head < shape_.num_q_heads; ++head) {
      for (std::size_t time = 0; time < num_positions(); ++time) {
        const bool in_prompt = time < prompt_len_;
        const std::size_t width = in_prompt ? prompt_len_ : num_positions();
        const std::size_t row = in_prompt ? head * prompt_len_ + time
                                          : (time - prompt_len_) * shape_.num_q_heads + head;
        std::copy_n(
            (in_prompt ? prompt : decoded).begin() + static_cast<std::ptrdiff_t>(row * width),
            width, rows_.begin() + offset(head, time));
      }
    }
  }

  /// Of a PositionCache.
  [[nodiscard]] const kvevict::CacheShape& shape() const { return shape_; }
  [[nodiscard]] std::size_t prompt_len() const { return prompt_len_; }
  [[nodiscard]] std::size_t num_positions() const { return shape_.head_dim; }

  /// Hands over the rows that the policy wants of the newest `count` tokens, the last of which is
  /// at `last`.
  template <class P>
  void hand_over(P& policy, PositionCache& cache, std::size_t last, std::size_t count,
                 RowSource source) const {
    const std::size_t wanted = std::min(policy.wanted_attention_rows(0), count);
    if (wanted == 0)
      return;
    hand_over_rows(policy, cache, 0, wanted, source, [&](std::size_t head, std::size_t r) {
      return row(head, last + 1 - wanted + r);
    });
  }
  /// [positions] of the token at `time`.
  [[nodiscard]] const double* row(std::size_t head, std::size_t time) const {
    return rows_.data() + offset(head, time);
  }

 private:
  [[nodiscard]] std::ptrdiff_t offset(std::size_t head, std::size_t time) const {
    return static_cast<std::ptrdiff_t>((head * num_positions() + time) * num_positions());
  }

  std::size_t prompt_len_;
  kvevict::CacheShape shape_;
  std::vector<double> rows_;  // [num_q_heads, positions, positions]
};

/// Scores of all slots of a lane.
template <class P>
[[nodiscard]] std::vector<float> lane_scores(const P& policy, PositionCache& cache,
                                             std::size_t lane) {
  const auto view = cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  std::vector<float> scores(policy.sequence().seq_len(lane));
  policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, lane, scores);
  return scores;
}

/// Cuts the cache where the policy wants to; returns the positions that went from each lane.
template <class P>
std::vector<std::vector<std::size_t>> cut(P& policy, PositionCache& cache) {
  const std::size_t num_heads = cache.shape().num_kv_heads;
  std::vector<std::vector<std::size_t>> gone(cache.shape().num_layers * num_heads);
  if (!policy.should_evict())
    return gone;
  const kvevict::KeepMask& mask = policy.select(cache.view());
  for (std::size_t lane = 0; lane < gone.size(); ++lane) {
    const std::vector<std::size_t> positions = cache.positions(lane / num_heads, lane % num_heads);
    for (std::size_t slot = 0; slot < positions.size(); ++slot) {
      if (!mask.keeps(lane / num_heads, lane % num_heads, slot)) {
        gone[lane].push_back(positions[slot]);
      }
    }
  }
  cache.evict(mask);
  policy.apply(mask);
  return gone;
}

/// The same where at most one token goes from each set of a model of one layer: adds its position,
/// -1 where none went.
template <class P>
void cut_one(P& policy, PositionCache& cache, std::vector<double>& evicted) {
  const std::vector<std::vector<std::size_t>> gone = cut(policy, cache);
  for (std::size_t lane = 0; lane < policy.sequence().num_lanes(); ++lane) {
    if (gone[lane].size() > 1)
      throw std::runtime_error("more than one token went in a step");
    evicted.push_back(gone[lane].empty() ? -1 : static_cast<double>(gone[lane][0]));
  }
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_STEP_LOGITS_HPP_
