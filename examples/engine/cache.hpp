#ifndef KVEVICT_EXAMPLES_ENGINE_CACHE_HPP_
#define KVEVICT_EXAMPLES_ENGINE_CACHE_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

// The KV cache: ragged per layer and KV head, so that every head may keep its own tokens.
namespace engine {

/// K and V of one layer and KV head. Rows are in the order in which they were appended, slot 0
/// first; rows from size() on are spare.
struct KvLane {
  [[nodiscard]] std::size_t size() const noexcept { return num_rows; }
  [[nodiscard]] std::size_t capacity() const noexcept { return positions.size(); }

  std::vector<float> keys;              ///< [capacity, head_dim], after RoPE
  std::vector<float> values;            ///< [capacity, head_dim]
  std::vector<std::int32_t> positions;  ///< [capacity]; the angle by which RoPE turned the key
  std::size_t num_rows = 0;
};

/// The lanes of one sequence. A copy is a fork: it shares nothing with the original.
class KvCache {
 public:
  KvCache(std::size_t num_layers, std::size_t num_kv_heads, std::size_t head_dim)
      : num_layers_(num_layers),
        num_kv_heads_(num_kv_heads),
        head_dim_(head_dim),
        lanes_(num_layers * num_kv_heads) {}

  [[nodiscard]] std::size_t num_layers() const noexcept { return num_layers_; }
  [[nodiscard]] std::size_t num_kv_heads() const noexcept { return num_kv_heads_; }
  [[nodiscard]] std::size_t head_dim() const noexcept { return head_dim_; }

  /// Rows may be read and overwritten through the lane; sizes change through the cache alone.
  [[nodiscard]] KvLane& lane(std::size_t layer, std::size_t kv_head) noexcept {
    return lanes_[layer * num_kv_heads_ + kv_head];
  }
  [[nodiscard]] const KvLane& lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return lanes_[layer * num_kv_heads_ + kv_head];
  }
  [[nodiscard]] std::size_t longest_lane() const noexcept {
    std::size_t longest = 0;
    for (const KvLane& lane : lanes_)
      longest = std::max(longest, lane.size());
    return longest;
  }

  /// The position of the next token. It goes on counting when tokens are dropped.
  [[nodiscard]] std::int32_t next_position() const noexcept { return next_position_; }
  void set_next_position(std::int32_t position) noexcept { next_position_ = position; }

  /// Makes room for `count` more rows of one lane; the caller fills them.
  /// @return the first new slot
  std::size_t append(std::size_t layer, std::size_t kv_head, std::size_t count) {
    KvLane& grown = lane(layer, kv_head);
    const std::size_t first = grown.num_rows;
    if (first + count > grown.capacity())
      reallocate(grown, first + count + headroom(first + count));
    grown.num_rows += count;
    return first;
  }

  /// Keeps the rows in `slots` (ascending, no slot twice) and drops the others.
  void keep(std::size_t layer, std::size_t kv_head, std::span<const std::uint32_t> slots) {
    KvLane& cut = lane(layer, kv_head);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= cut.num_rows || (i > 0 && slots[i] <= slots[i - 1])) {
        throw std::invalid_argument("KvCache::keep: slots must ascend and lie in the lane");
      }
    }
    for (std::size_t to = 0; to < slots.size(); ++to) {
      const std::size_t from = slots[to];
      if (from == to)
        continue;
      std::copy_n(&cut.keys[from * head_dim_], head_dim_, &cut.keys[to * head_dim_]);
      std::copy_n(&cut.values[from * head_dim_], head_dim_, &cut.values[to * head_dim_]);
      cut.positions[to] = cut.positions[from];
    }
    cut.num_rows = slots.size();
  }

  /// Drops the rows from slot `size` on: the newest ones, or what a compaction left behind.
  void truncate(std::size_t layer, std::size_t kv_head, std::size_t size) {
    KvLane& cut = lane(layer, kv_head);
    if (size > cut.num_rows)
      throw std::invalid_argument("KvCache::truncate: no so many rows");
    cut.num_rows = size;
  }

  /// Gives spare rows of all lanes back: each moves to a smaller piece of memory, with the headroom
  /// that growing would leave it. A lane stays where it is while it has less than twice of that:
  /// one that takes a token and drops one in every step never moves.
  void shrink() {
    for (KvLane& lane : lanes_) {
      const std::size_t spare = headroom(lane.num_rows);
      if (lane.capacity() > lane.num_rows + 2 * spare)
        reallocate(lane, lane.num_rows + spare);
    }
  }

  /// Memory of all lanes now, and the most that it was at any time since reset_peak(). Counted
  /// where lanes take and give back memory, so it includes spare rows and, in the peak, the old
  /// and the new piece of a lane that moves.
  [[nodiscard]] std::size_t bytes_held() const noexcept { return bytes_held_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_bytes_; }
  void reset_peak() noexcept { peak_bytes_ = bytes_held_; }

 private:
  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return 2 * head_dim_ * sizeof(float) + sizeof(std::int32_t);
  }

  // Spare rows of a lane that has just moved. Few, because they are held for nothing: a lane that
  // only grows moves once in a sixteenth of its length, which next to reading it in every step
  // costs little.
  [[nodiscard]] static std::size_t headroom(std::size_t num_rows) noexcept {
    return num_rows / 16 + 2;
  }

  // The one place where memory is taken and given back.
  void reallocate(KvLane& lane, std::size_t capacity) {
    KvLane moved;
    moved.keys.resize(capacity * head_dim_);
    moved.values.resize(capacity * head_dim_);
    moved.positions.resize(capacity);
    moved.num_rows = lane.num_rows;
    bytes_held_ += capacity * row_bytes();
    peak_bytes_ = std::max(peak_bytes_, bytes_held_);
    std::copy_n(lane.keys.begin(), lane.num_rows * head_dim_, moved.keys.begin());
    std::copy_n(lane.values.begin(), lane.num_rows * head_dim_, moved.values.begin());
    std::copy_n(lane.positions.begin(), lane.num_rows, moved.positions.begin());
    bytes_held_ -= lane.capacity() * row_bytes();
    lane = std::move(moved);
  }

  std::size_t num_layers_;
  std::size_t num_kv_heads_;
  std::size_t head_dim_;
  std::vector<KvLane> lanes_;
  std::int32_t next_position_ = 0;
  std::size_t bytes_held_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_CACHE_HPP_
