#ifndef KVEVICT_TESTS_SUPPORT_WINDOW_CACHE_HPP_
#define KVEVICT_TESTS_SUPPORT_WINDOW_CACHE_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace kvevict_test {

/// A float cache, K and V [layers, kv_heads, capacity, head_dim], that shrinks per lane.
class WindowCache {
 public:
  WindowCache(const kvevict::CacheShape& shape, std::size_t capacity)
      : shape_(shape),
        capacity_(capacity),
        keys_(shape.num_layers * shape.num_kv_heads * capacity * shape.head_dim),
        values_(keys_.size()),
        lengths_(shape.num_layers * shape.num_kv_heads) {}

  [[nodiscard]] const kvevict::CacheShape& shape() const { return shape_; }
  [[nodiscard]] kvevict::views::ContiguousView view() {
    using kvevict::views::Tensor;
    const auto tensor = [&](std::vector<float>& rows) {
      return Tensor::hnd(rows.data(), kvevict::ElementType::kF32, capacity_, shape_.num_kv_heads,
                         shape_.head_dim);
    };
    kvevict::views::ContiguousView view(shape_, tensor(keys_), tensor(values_), lengths_);
    view.set_valid(valid_);
    return view;
  }
  void append(std::size_t count) {
    for (std::size_t& length : lengths_) {
      length += count;
      if (length > capacity_)
        throw std::logic_error("the test's cache is too small");
    }
  }
  /// Takes the newest tokens back, so that every lane has at most `seq_len` slots.
  void truncate(std::size_t seq_len) {
    for (std::size_t& length : lengths_)
      length = std::min(length, seq_len);
  }
  void evict(const kvevict::KeepMask& mask) {
    kvevict::compact(view(), mask);
    for (std::size_t lane = 0; lane < lengths_.size(); ++lane) {
      lengths_[lane] = mask.count(lane / shape_.num_kv_heads, lane % shape_.num_kv_heads);
    }
  }
  [[nodiscard]] float* key(std::size_t layer, std::size_t head, std::size_t slot) {
    return keys_.data() + row(layer, head, slot);
  }
  [[nodiscard]] float* value(std::size_t layer, std::size_t head, std::size_t slot) {
    return values_.data() + row(layer, head, slot);
  }
  void fill(Random& random) {
    for (auto* rows : {&keys_, &values_}) {
      for (float& x : *rows)
        x = random.eighths();
    }
  }
  /// 0: holds no token; the same for all lanes.
  std::vector<std::uint8_t>& valid() { return valid_; }
  [[nodiscard]] std::size_t seq_len(std::size_t lane = 0) const { return lengths_[lane]; }

 private:
  [[nodiscard]] std::size_t row(std::size_t layer, std::size_t head, std::size_t slot) const {
    return ((layer * shape_.num_kv_heads + head) * capacity_ + slot) * shape_.head_dim;
  }

  kvevict::CacheShape shape_;
  std::size_t capacity_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::size_t> lengths_;
  std::vector<std::uint8_t> valid_;
};

/// Attention rows of one layer from numbers, [q_head][row][slot].
class GivenRows {
 public:
  explicit GivenRows(const std::vector<std::vector<std::vector<float>>>& rows)
      : num_q_heads_(rows.size()), num_rows_(rows[0].size()), len_(rows[0].back().size()) {
    for (const auto& head : rows) {
      for (std::vector<float> row : head) {
        row.resize(len_);
        data_.insert(data_.end(), row.begin(), row.end());
      }
    }
  }
  [[nodiscard]] kvevict::AttentionRows rows() const {
    return {.data = data_.data(),
            .num_q_heads = num_q_heads_,
            .num_rows = num_rows_,
            .head_stride = static_cast<std::ptrdiff_t>(num_rows_ * len_),
            .row_stride = static_cast<std::ptrdiff_t>(len_)};
  }

 private:
  std::size_t num_q_heads_;
  std::size_t num_rows_;
  std::size_t len_;
  std::vector<float> data_;
};

/// Queries of the last tokens of a prompt, every layer's [num_q_heads, num_rows, head_dim].
class WindowQueries {
 public:
  WindowQueries(const kvevict::CacheShape& shape, std::size_t num_rows, Random& random)
      : shape_(shape), num_rows_(num_rows) {
    data_.resize(shape.num_layers * shape.num_q_heads * num_rows * shape.head_dim);
    for (float& x : data_)
      x = random.eighths();
  }
  [[nodiscard]] std::size_t num_rows() const { return num_rows_; }
  [[nodiscard]] kvevict::QueryRows rows(std::size_t layer, std::size_t first,
                                        std::size_t count) const {
    const std::size_t head = num_rows_ * shape_.head_dim;
    return {.data = data_.data() + layer * shape_.num_q_heads * head + first * shape_.head_dim,
            .num_q_heads = shape_.num_q_heads,
            .num_rows = count,
            .head_stride = static_cast<std::ptrdiff_t>(head),
            .row_stride = static_cast<std::ptrdiff_t>(shape_.head_dim)};
  }

 private:
  kvevict::CacheShape shape_;
  std::size_t num_rows_;
  std::vector<float> data_;
};

/// Feeds `len` tokens that the cache has room for, `chunk` at a time, with the queries of the last
/// of them, and ends the prompt.
template <class P>
void feed_prompt(P& policy, WindowCache& cache, std::size_t len, const WindowQueries& queries,
                 std::size_t chunk) {
  policy.begin(len);
  const std::size_t before = len - std::min(len, queries.num_rows());
  for (std::size_t done = 0; done < len;) {
    const std::size_t count = std::min(chunk, len - done);
    cache.append(count);
    policy.append(count);
    done += count;
    if (done <= before)
      continue;
    [[maybe_unused]] const std::size_t first = std::max(done - count, before) - before;
    [[maybe_unused]] const std::size_t skipped = queries.num_rows() - (len - before);
    if constexpr (P::kAttentionUse != kvevict::AttentionUse::kNone) {
      for (std::size_t layer = 0; layer < cache.shape().num_layers; ++layer) {
        policy.observe_queries(layer, queries.rows(layer, skipped + first, done - before - first),
                               cache.view());
      }
    }
  }
  policy.end_prefill(cache.view());
}

/// Cuts if the policy wants to; returns whether it did.
template <class P>
bool cut_if_due(P& policy, WindowCache& cache) {
  if (!policy.should_evict())
    return false;
  const kvevict::KeepMask mask = policy.select(cache.view());
  cache.evict(mask);
  policy.apply(mask);
  return true;
}

/// Scores of one lane, [seq_len], as selection sees them before any normalisation.
template <class P>
std::vector<float> scores_of(const P& policy, WindowCache& cache, std::size_t lane = 0) {
  const auto view = cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  std::vector<float> scores(cache.seq_len(lane));
  policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, lane, scores);
  return scores;
}

/// A prompt of one layer whose window's attention rows are `rows`, [q_head][row][slot]; the last
/// row's length is the prompt's.
template <class P>
void feed_rows(P& policy, WindowCache& cache,
               const std::vector<std::vector<std::vector<float>>>& rows) {
  const std::size_t len = rows[0].back().size();
  cache.append(len);
  policy.begin(len);
  policy.observe_attention(0, GivenRows(rows).rows());
  policy.end_prefill(cache.view());
}

/// Selects, executes and applies.
template <class P>
void cut(P& policy, WindowCache& cache) {
  const kvevict::KeepMask& mask = policy.select(cache.view());
  cache.evict(mask);
  policy.apply(mask);
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_WINDOW_CACHE_HPP_
