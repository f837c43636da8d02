#ifndef KVEVICT_CORE_SLOT_VECTOR_HPP_
#define KVEVICT_CORE_SLOT_VECTOR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What is kept once per slot of one lane, side by side. Where one run of slots goes, as in most
/// decode steps, whatever is shorter closes the gap: what lies behind it, or what lies before it,
/// since the values need not start where their memory does. It takes no memory for that: without a
/// sixteenth to spare what lies behind moves.
template <class T>
class SlotVector {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size() - first_; }
  [[nodiscard]] std::span<T> values() noexcept { return std::span(memory_).subspan(first_); }
  [[nodiscard]] std::span<const T> values() const noexcept {
    return std::span(memory_).subspan(first_);
  }

  void reserve(std::size_t size) { memory_.reserve(size); }
  void append(std::size_t count, const T& value) {
    if (count > memory_.capacity() - memory_.size()) {
      memory_.erase(memory_.begin(), begin());
      first_ = 0;
    }
    memory_.insert(memory_.end(), count, value);
  }
  /// Keeps the first `size`.
  void truncate(std::size_t size) { memory_.resize(first_ + size); }
  void clear() noexcept {
    memory_.clear();
    first_ = 0;
  }
  /// Keeps what the mask keeps of its `lane`, which is as long.
  void apply(const KeepMask& mask, std::size_t lane) {
    std::size_t num_runs = 0;
    std::size_t first = 0;
    std::size_t last = 0;
    mask.for_each_lane_run(lane, false, [&](std::size_t run_first, std::size_t run_last) {
      ++num_runs;
      first = run_first;
      last = run_last;
    });
    const bool has_room = memory_.capacity() - size() >= size() / 16;
    if (num_runs != 1 || first >= size() - last || !has_room)
      return truncate(detail::move_kept(mask, lane, values()));
    std::move_backward(begin(), begin() + static_cast<std::ptrdiff_t>(first),
                       begin() + static_cast<std::ptrdiff_t>(last));
    first_ += last - first;
  }

 private:
  [[nodiscard]] auto begin() noexcept {
    return memory_.begin() + static_cast<std::ptrdiff_t>(first_);
  }

  std::vector<T> memory_;
  std::size_t first_ = 0;  // of the values
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SLOT_VECTOR_HPP_
