#ifndef KVEVICT_TESTS_SUPPORT_TEST_ENGINE_HPP_
#define KVEVICT_TESTS_SUPPORT_TEST_ENGINE_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/views/compact.hpp"
#include "support/layouts.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvevict_test {

/// What passes through a made-up model: a function of the place alone, so that every run, layout
/// and order of calls meets the same numbers. All are exact in every element type.
struct ToyModel {
  enum class Signal : std::uint8_t { kKey, kValue, kQuery, kHidden };

  std::uint64_t seed = 1;
  std::optional<std::size_t> nan_position = std::nullopt;  ///< the token whose signals are NaN
  /// The KV head from which on keys, values and scores are those of another model.
  std::size_t first_strange_head = 100;
  /// Positions before the first token: padding, with anything in it.
  std::size_t padding = 0;

  [[nodiscard]] std::vector<float> row(Signal signal, std::size_t layer, std::size_t head,
                                       std::size_t position, std::size_t dim) const {
    if (nan_position == position) {
      return std::vector<float>(dim, std::numeric_limits<float>::quiet_NaN());
    }
    if (position < padding)
      return junk(position + 1000 * (dim + head), dim);
    position -= padding;
    const bool strange = signal != Signal::kQuery && head >= first_strange_head;
    Random random(seed + (strange ? 1'000'003 : 0) +
                  4 * (position + 100'000 * (head + 100 * layer)) +
                  static_cast<std::uint64_t>(signal));
    random.bits();
    std::vector<float> row(dim);
    for (float& x : row)
      x = random.eighths();
    return row;
  }

 private:
  [[nodiscard]] std::vector<float> junk(std::size_t place, std::size_t dim) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr std::array<float, 5> kJunk = {1000.0F, -1000.0F, kInfinity, -kInfinity,
                                            std::numeric_limits<float>::quiet_NaN()};
    Random random(seed + place);
    std::vector<float> row(dim);
    for (float& x : row)
      x = kJunk[random.below(kJunk.size())];
    return row;
  }
};

/// Where an engine's attention comes from.
enum class RowsFrom : std::uint8_t {
  kQueries,  ///< the library computes the rows
  kEngine,   ///< rows that the engine has
};

/// An engine reduced to its cache: what integrating a policy takes, and no more. A copy is a fork.
template <class P>
class TestEngine {
 public:
  static constexpr std::size_t kHiddenSize = 7;

  TestEngine(P policy_object, LayoutCache cache_object, ToyModel toy = {},
             RowsFrom source = RowsFrom::kQueries)
      : policy(std::move(policy_object)),
        cache(std::move(cache_object)),
        model(toy),
        rows_from(source),
        positions_(cache.shape().num_layers * cache.shape().num_kv_heads) {}

  /// Tokens of a prompt in pieces of `chunk`; 0: in one piece, which needs no append.
  void prompt(std::size_t count, std::size_t chunk = 0,
              std::span<const kvevict::PositionSpan> pinned = {}) {
    policy.begin(count, pinned);
    if (chunk == 0) {
      write(count);
      signals(count);
    }
    for (std::size_t left = chunk == 0 ? 0 : count; left > 0;) {
      const std::size_t piece = std::min(chunk, left);
      feed(piece);
      left -= piece;
    }
    policy.end_prefill(cache.view());
  }
  /// One step with `count` tokens, without eviction.
  void feed(std::size_t count) {
    policy.append(count);
    write(count);
    signals(count);
  }
  /// Steps as a decode loop makes them.
  void decode(std::size_t steps, std::size_t count = 1) {
    for (std::size_t step = 0; step < steps; ++step) {
      feed(count);
      evict_if_due();
    }
  }
  [[nodiscard]] const kvevict::KeepMask& select() { return policy.select(cache.view()); }
  bool evict_if_due() {
    if (!policy.should_evict())
      return false;
    evict(select());
    return true;
  }
  void evict(const kvevict::KeepMask& mask) {
    kvevict::compact(cache.view(), mask);
    for_each_lane([&](std::size_t layer, std::size_t head, std::vector<std::size_t>& positions) {
      const std::size_t old_length = positions.size();
      kvevict::compact_slots(mask, mask.lane_of(layer, head), positions);
      set_length(layer, head, positions);
      cache.forget_behind(layer, head, old_length);
    });
    policy.apply(mask);
  }
  void truncate(std::size_t length) {
    for_each_lane([&](std::size_t layer, std::size_t head, std::vector<std::size_t>& positions) {
      const std::size_t old_length = positions.size();
      while (!positions.empty() && positions.back() >= length)
        positions.pop_back();
      set_length(layer, head, positions);
      cache.forget_behind(layer, head, old_length);
    });
    length_ = length;
    policy.truncate(length);
  }
  void reset() {
    truncate(0);
    policy.reset();
  }

  /// Positions of the tokens that a lane holds, ascending.
  [[nodiscard]] const std::vector<std::size_t>& positions(std::size_t layer = 0,
                                                          std::size_t head = 0) const {
    return positions_[layer * cache.shape().num_kv_heads + head];
  }
  [[nodiscard]] const std::vector<std::vector<std::size_t>>& all_positions() const {
    return positions_;
  }
  [[nodiscard]] std::size_t length() const { return length_; }

  /// Whether every live row is the one that its token wrote.
  [[nodiscard]] bool cache_is_intact() {
    bool intact = true;
    for_each_lane([&](std::size_t layer, std::size_t head, std::vector<std::size_t>& positions) {
      for (std::size_t slot = 0; slot < positions.size(); ++slot) {
        const auto same = [&](Part part, ToyModel::Signal signal) {
          return cache.row(part, layer, head, slot) ==
                 model.row(signal, layer, head, positions[slot], cache.dim(part));
        };
        intact = intact && same(Part::kKeys, ToyModel::Signal::kKey) &&
                 same(Part::kValues, ToyModel::Signal::kValue);
      }
    });
    return intact;
  }

  P policy;
  LayoutCache cache;
  ToyModel model;
  RowsFrom rows_from;

 private:
  template <class Visit>
  void for_each_lane(Visit&& visit) {
    for (std::size_t layer = 0; layer < cache.shape().num_layers; ++layer) {
      for (std::size_t head = 0; head < cache.shape().num_kv_heads; ++head) {
        visit(layer, head, positions_[layer * cache.shape().num_kv_heads + head]);
      }
    }
  }
  void set_length(std::size_t layer, std::size_t head, const std::vector<std::size_t>& positions) {
    cache.length(layer, head) = positions.size();
    cache.padding(layer, head) = static_cast<std::size_t>(
        std::lower_bound(positions.begin(), positions.end(), model.padding) - positions.begin());
  }
  void write(std::size_t count) {
    for_each_lane([&](std::size_t layer, std::size_t head, std::vector<std::size_t>& positions) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t position = length_ + i;
        cache.set(Part::kKeys, layer, head, positions.size(),
                  model.row(ToyModel::Signal::kKey, layer, head, position, cache.dim(Part::kKeys)));
        cache.set(
            Part::kValues, layer, head, positions.size(),
            model.row(ToyModel::Signal::kValue, layer, head, position, cache.dim(Part::kValues)));
        positions.push_back(position);
      }
      set_length(layer, head, positions);
    });
    length_ += count;
  }
  /// What the policy wants of the newest `count` tokens, and no more.
  void signals(std::size_t count) {
    if constexpr (requires { policy.observe_scores(0, 0, std::span<const float>()); }) {
      if (policy.wants_scores())
        hand_over_scores(count);
    }
    for (std::size_t layer = 0; layer < cache.shape().num_layers; ++layer) {
      if constexpr (requires(kvevict::HiddenRows rows) { policy.observe_hidden(layer, rows); }) {
        if (policy.wants_hidden(layer))
          hand_over_hidden(layer, count);
      }
      if constexpr (requires(kvevict::QueryRows queries) {
                      policy.observe_queries(layer, queries, cache.view());
                    }) {
        const std::size_t wanted = policy.wanted_attention_rows(layer);
        if (wanted == 0)
          continue;
        if (wanted > count)
          throw std::logic_error("more rows wanted than there are");
        hand_over_attention(layer, wanted);
      }
    }
    policy.observe_cache(cache.view());
  }
  // A scorer that sees a token once, when it comes.
  void hand_over_scores(std::size_t count) {
    for_each_lane([&](std::size_t layer, std::size_t head, std::vector<std::size_t>& positions) {
      scratch_.clear();
      for (std::size_t slot = positions.size() - count; slot < positions.size(); ++slot) {
        scratch_.push_back(
            model.row(ToyModel::Signal::kHidden, layer, head, positions[slot], 1)[0]);
      }
      policy.observe_scores(layer, head, scratch_, positions.size() - count);
    });
  }
  void hand_over_hidden(std::size_t layer, std::size_t count) {
    scratch_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<float> row =
          model.row(ToyModel::Signal::kHidden, layer, 0, length_ - count + i, kHiddenSize);
      scratch_.insert(scratch_.end(), row.begin(), row.end());
    }
    policy.observe_hidden(layer, {scratch_.data(), count, kHiddenSize,
                                  static_cast<std::ptrdiff_t>(kHiddenSize * sizeof(float)),
                                  kvevict::ElementType::kF32});
  }
  void hand_over_attention(std::size_t layer, std::size_t wanted) {
    const std::size_t num_heads = cache.shape().num_q_heads;
    const std::size_t dim = cache.shape().head_dim;
    scratch_.clear();
    for (std::size_t head = 0; head < num_heads; ++head) {
      for (std::size_t r = 0; r < wanted; ++r) {
        const std::vector<float> row =
            model.row(ToyModel::Signal::kQuery, layer, head, length_ - wanted + r, dim);
        scratch_.insert(scratch_.end(), row.begin(), row.end());
      }
    }
    bool from_queries = rows_from == RowsFrom::kQueries;
    if constexpr (requires { policy.attention_use(); }) {
      from_queries = from_queries || policy.attention_use() == kvevict::AttentionUse::kQueries;
    } else {
      from_queries = from_queries || P::kAttentionUse == kvevict::AttentionUse::kQueries;
    }
    if (from_queries) {
      policy.observe_queries(layer,
                             {.data = scratch_.data(),
                              .num_q_heads = num_heads,
                              .num_rows = wanted,
                              .head_stride = static_cast<std::ptrdiff_t>(wanted * dim),
                              .row_stride = static_cast<std::ptrdiff_t>(dim)},
                             cache.view());
      return;
    }
    if constexpr (requires(kvevict::AttentionRows rows) { policy.observe_attention(layer, rows); })
      hand_over_rows(layer, wanted);
  }
  // Of the queries in scratch_.
  void hand_over_rows(std::size_t layer, std::size_t wanted) {
    const std::size_t num_heads = cache.shape().num_q_heads;
    const std::size_t dim = cache.shape().head_dim;
    std::size_t longest = 0;
    for (std::size_t head = 0; head < cache.shape().num_kv_heads; ++head) {
      longest = std::max(longest, positions(layer, head).size());
    }
    // What lies behind a row's own token is never read.
    rows_.assign(num_heads * wanted * longest, std::numeric_limits<float>::quiet_NaN());
    log_sums_.assign(num_heads * wanted, 0.0F);
    for (std::size_t head = 0; head < num_heads; ++head) {
      const std::size_t kv_head = head / cache.shape().group_size();
      const std::size_t seq_len = positions(layer, kv_head).size();
      for (std::size_t r = 0; r < wanted; ++r) {
        log_sums_[head * wanted + r] =
            softmax_row(layer, kv_head, scratch_.data() + (head * wanted + r) * dim,
                        seq_len - (wanted - 1 - r), rows_.data() + (head * wanted + r) * longest);
      }
    }
    policy.observe_attention(layer, {.data = rows_.data(),
                                     .num_q_heads = num_heads,
                                     .num_rows = wanted,
                                     .head_stride = static_cast<std::ptrdiff_t>(wanted * longest),
                                     .row_stride = static_cast<std::ptrdiff_t>(longest),
                                     .log_sums = log_sums_.data()});
  }
  // Returns the log of the denominator.
  float softmax_row(std::size_t layer, std::size_t kv_head, const float* query, std::size_t visible,
                    float* row) {
    const std::size_t dim = cache.shape().head_dim;
    std::vector<double> logits(visible);
    for (std::size_t slot = 0; slot < visible; ++slot) {
      const std::vector<float> key = cache.row(Part::kKeys, layer, kv_head, slot);
      for (std::size_t c = 0; c < dim; ++c) {
        logits[slot] += static_cast<double>(query[c]) * static_cast<double>(key[c]);
      }
      logits[slot] /= std::sqrt(static_cast<double>(dim));
    }
    double sum = 0;
    for (const double logit : logits)
      sum += std::exp(logit);
    for (std::size_t slot = 0; slot < visible; ++slot) {
      row[slot] = static_cast<float>(std::exp(logits[slot]) / sum);
    }
    return static_cast<float>(std::log(sum));
  }

  std::vector<std::vector<std::size_t>> positions_;  // [layers * kv_heads], by slot
  std::size_t length_ = 0;
  std::vector<float> scratch_;
  std::vector<float> rows_;
  std::vector<float> log_sums_;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_TEST_ENGINE_HPP_
