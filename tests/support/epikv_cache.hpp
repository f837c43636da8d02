#ifndef KVEVICT_TESTS_SUPPORT_EPIKV_CACHE_HPP_
#define KVEVICT_TESTS_SUPPORT_EPIKV_CACHE_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace kvevict_test {

/// A cache as an engine would have it, K and V [layers, kv_heads, capacity, head_dim], all lanes
/// equally long, that knows which position lies in which slot.
class EpiKVCache {
 public:
  EpiKVCache(const kvevict::CacheShape& shape, std::size_t capacity)
      : shape_(shape),
        capacity_(capacity),
        keys_(shape.num_layers * shape.num_kv_heads * capacity * shape.head_dim),
        values_(keys_.size()) {}

  [[nodiscard]] kvevict::views::ContiguousView view() {
    using kvevict::views::Tensor;
    const auto tensor = [&](std::vector<float>& rows) {
      return Tensor::hnd(rows.data(), kvevict::ElementType::kF32, capacity_, shape_.num_kv_heads,
                         shape_.head_dim);
    };
    return {shape_, tensor(keys_), tensor(values_), positions_.size()};
  }
  void append(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      positions_.push_back(length_++);
    if (positions_.size() > capacity_)
      throw std::logic_error("the test's cache is too small");
  }
  [[nodiscard]] float* key(std::size_t layer, std::size_t head, std::size_t slot) {
    return keys_.data() + row(layer, head, slot);
  }
  [[nodiscard]] float* value(std::size_t layer, std::size_t head, std::size_t slot) {
    return values_.data() + row(layer, head, slot);
  }
  /// Executes the mask; returns the positions that went.
  std::vector<std::size_t> evict(const kvevict::KeepMask& mask) {
    kvevict::compact(view(), mask);
    std::vector<std::size_t> gone;
    mask.for_each_evicted_run(0, 0, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first)
        gone.push_back(positions_[first]);
    });
    kvevict::compact_slots(mask, 0, positions_);
    return gone;
  }
  void truncate(std::size_t length) {
    while (!positions_.empty() && positions_.back() >= length)
      positions_.pop_back();
    length_ = length;
  }
  /// [seq_len], by slot.
  [[nodiscard]] const std::vector<std::size_t>& positions() const { return positions_; }
  [[nodiscard]] std::size_t seq_len() const { return positions_.size(); }

 private:
  [[nodiscard]] std::size_t row(std::size_t layer, std::size_t head, std::size_t slot) const {
    return ((layer * shape_.num_kv_heads + head) * capacity_ + slot) * shape_.head_dim;
  }

  kvevict::CacheShape shape_;
  std::size_t capacity_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::size_t> positions_;
  std::size_t length_ = 0;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_EPIKV_CACHE_HPP_
