#ifndef KVEVICT_TESTS_FUZZ_REMAP_BODY_HPP_
#define KVEVICT_TESTS_FUZZ_REMAP_BODY_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/paged_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Page table, renumbering of slots and compaction against a model so naive that it cannot be
// wrong: a list of positions per lane.
namespace kvevict_test {

/// Numbers out of a fuzzer's bytes; zeros when they are used up.
class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::size_t below(std::size_t bound) {
    if (bytes_.empty())
      return 0;
    const std::size_t value = bytes_[0] % bound;
    bytes_ = bytes_.subspan(1);
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

/// Runs what the bytes say; returns the first difference, or an empty text.
class RemapFuzz {
 public:
  static std::string run(std::span<const std::uint8_t> bytes) {
    FuzzInput input(bytes);
    RemapFuzz fuzz(input);
    while (!input.empty() && fuzz.difference_.empty())
      fuzz.step(input);
    return fuzz.difference_;
  }

 private:
  using Lanes = std::vector<std::vector<kvevict::Position>>;
  static constexpr std::size_t kCapacity = 200;
  static constexpr std::size_t kMaxLength = 4000;  // positions that a float tells apart

  explicit RemapFuzz(FuzzInput& input)
      : shape_{.num_layers = 1 + input.below(3),
               .num_q_heads = 2,
               .num_kv_heads = 1 + input.below(2),
               .head_dim = 1 + input.below(3),
               .value_dim = 1 + input.below(2)},
        scope_(static_cast<kvevict::MaskScope>(input.below(3))),
        page_size_(1 + input.below(9)),
        head_major_(input.below(2) == 1),
        sequence_("RemapFuzz", shape_, scope_),
        state_(shape_, scope_, 2),
        lanes_(shape_.num_layers * shape_.num_kv_heads),
        table_((kCapacity + page_size_ - 1) / page_size_) {
    const std::size_t num_pages = table_.size() + 3;
    std::vector<std::int32_t> pages(num_pages);
    std::iota(pages.begin(), pages.end(), 0);
    for (std::size_t i = num_pages - 1; i > 0; --i)
      std::swap(pages[i], pages[input.below(i + 1)]);
    std::copy_n(pages.begin(), table_.size(), table_.begin());
    const std::size_t rows = shape_.num_layers * num_pages * page_size_ * shape_.num_kv_heads;
    keys_.assign(rows * shape_.head_dim, kUntouched);
    values_.assign(rows * shape_.value_size(), kUntouched);
  }

  void step(FuzzInput& input) {
    switch (input.below(8)) {
      case 0:
        truncate(input);
        break;
      case 1:
      case 2:
        evict(input);
        break;
      default:
        append(1 + input.below(input.below(4) == 0 ? 40 : 5));
    }
    check();
  }

  void append(std::size_t count) {
    std::size_t longest = 0;
    for (const auto& lane : lanes_)
      longest = std::max(longest, lane.size());
    count = std::min({count, kCapacity - longest, kMaxLength - sequence_.length()});
    const std::size_t first = sequence_.length();
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      for (std::size_t i = 0; i < count; ++i) {
        lanes_[l].push_back(static_cast<kvevict::Position>(first + i));
        write(l, lanes_[l].size() - 1, lanes_[l].back());
      }
    }
    sequence_.append(count);
    state_.append(count);
    for (std::size_t lane = 0; lane < sequence_.num_lanes(); ++lane) {
      for (std::size_t slot = sequence_.seq_len(lane) - count; slot < sequence_.seq_len(lane);
           ++slot) {
        const auto position = static_cast<float>(sequence_.position(lane, slot));
        state_.at(lane, 0)[slot] = position;
        state_.at(lane, 1)[slot] = -position;
      }
    }
  }

  void truncate(FuzzInput& input) {
    const std::size_t length = sequence_.length() - std::min(sequence_.length(), input.below(30));
    sequence_.truncate(length);
    state_.truncate(sequence_);
    for (auto& lane : lanes_) {
      std::erase_if(lane, [&](kvevict::Position position) {
        return position >= static_cast<kvevict::Position>(length);
      });
    }
  }

  void evict(FuzzInput& input) {
    // As fine as the policy's lanes, or coarser where all that it covers are equally long.
    kvevict::MaskScope scope = scope_;
    const bool all_equal = std::all_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
      return lane.size() == lanes_[0].size();
    });
    if (all_equal && input.below(2) == 0)
      scope = kvevict::MaskScope::kModel;
    kvevict::KeepMask mask;
    mask.reset(scope, shape_.num_layers, shape_.num_kv_heads);
    for (std::size_t lane = 0; lane < shape_.num_lanes(scope); ++lane) {
      const std::size_t first =
          shape_.first_layer(scope, lane) * shape_.num_kv_heads + shape_.first_head(scope, lane);
      const std::size_t len = lanes_[first].size();
      const std::span<std::uint64_t> bits = mask.add_lane(len);
      for (std::size_t slot = 0; slot < len;) {
        const std::size_t run = 1 + input.below(input.below(3) == 0 ? 70 : 4);
        const bool kept = input.below(2) == 0;
        for (std::size_t end = std::min(len, slot + run); slot < end; ++slot) {
          if (kept)
            bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
        }
      }
    }
    std::vector<float> keys_before = keys_;
    std::vector<float> values_before = values_;
    const Lanes lanes_before = lanes_;
    kvevict::compact(view(), mask);
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      const std::size_t layer = l / shape_.num_kv_heads;
      const std::size_t head = l % shape_.num_kv_heads;
      check_conversions(mask, layer, head);
      std::vector<kvevict::Position> kept;
      for (std::size_t slot = 0; slot < lanes_[l].size(); ++slot) {
        if (mask.keeps(layer, head, slot))
          kept.push_back(lanes_[l][slot]);
      }
      lanes_[l] = kept;
    }
    sequence_.apply(mask);
    state_.apply(mask);
    check_untouched(keys_before, values_before, lanes_before);
  }

  /// Every way of reading a mask says the same.
  void check_conversions(const kvevict::KeepMask& mask, std::size_t layer, std::size_t head) {
    const std::size_t len = mask.seq_len(layer, head);
    std::vector<std::int32_t> map(len);
    mask.slot_map(layer, head, map);
    std::vector<std::uint32_t> slots(len);
    slots.resize(mask.kept_slots(layer, head, slots));
    std::size_t num_kept = 0;
    for (std::size_t slot = 0; slot < len; ++slot) {
      const bool kept = mask.keeps(layer, head, slot);
      expect(map[slot] == (kept ? static_cast<std::int32_t>(num_kept) : -1), "slot_map");
      if (kept) {
        expect(num_kept < slots.size() && slots[num_kept] == slot, "kept_slots");
        ++num_kept;
      }
    }
    expect(num_kept == slots.size() && num_kept == mask.count(layer, head), "count");
    std::size_t in_runs = 0;
    const auto add = [&](std::size_t first, std::size_t last) {
      expect(first < last && last <= len, "run");
      in_runs += last - first;
    };
    mask.for_each_kept_run(layer, head, add);
    expect(in_runs == num_kept, "kept runs");
    mask.for_each_evicted_run(layer, head, add);
    expect(in_runs == len, "evicted runs");
  }

  void check() {
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      const std::size_t layer = l / shape_.num_kv_heads;
      const std::size_t head = l % shape_.num_kv_heads;
      const std::size_t lane = shape_.lane_of(scope_, layer, head);
      expect(sequence_.seq_len(layer, head) == lanes_[l].size(), "seq_len");
      if (!difference_.empty())
        return;
      for (std::size_t slot = 0; slot < lanes_[l].size(); ++slot) {
        const kvevict::Position position = lanes_[l][slot];
        expect(sequence_.position(lane, slot) == position, "position");
        expect(state_.at(lane, 0)[slot] == static_cast<float>(position), "state 0");
        expect(state_.at(lane, 1)[slot] == -static_cast<float>(position), "state 1");
        const auto before = std::lower_bound(lanes_[l].begin(), lanes_[l].end(), position);
        expect(sequence_.slots_before(lane, static_cast<std::size_t>(position)) ==
                   static_cast<std::size_t>(before - lanes_[l].begin()),
               "slots_before");
        for (std::size_t c = 0; c < shape_.head_dim; ++c) {
          expect(keys_[offset(l, slot, c, shape_.head_dim)] == key(l, position, c), "key");
        }
        for (std::size_t c = 0; c < shape_.value_size(); ++c) {
          expect(values_[offset(l, slot, c, shape_.value_size())] == -key(l, position, c), "value");
        }
      }
    }
  }

  /// Compaction wrote to rows that were live and to nothing else.
  void check_untouched(std::vector<float>& keys_before, std::vector<float>& values_before,
                       const Lanes& lanes_before) {
    for (std::size_t l = 0; l < lanes_before.size(); ++l) {
      for (std::size_t slot = 0; slot < lanes_before[l].size(); ++slot) {
        for (std::size_t c = 0; c < shape_.head_dim; ++c) {
          const std::size_t i = offset(l, slot, c, shape_.head_dim);
          keys_before[i] = keys_[i];
        }
        for (std::size_t c = 0; c < shape_.value_size(); ++c) {
          const std::size_t i = offset(l, slot, c, shape_.value_size());
          values_before[i] = values_[i];
        }
      }
    }
    expect(keys_before == keys_ && values_before == values_, "a row that was not live changed");
  }

  void write(std::size_t l, std::size_t slot, kvevict::Position position) {
    for (std::size_t c = 0; c < shape_.head_dim; ++c) {
      keys_[offset(l, slot, c, shape_.head_dim)] = key(l, position, c);
    }
    for (std::size_t c = 0; c < shape_.value_size(); ++c) {
      values_[offset(l, slot, c, shape_.value_size())] = -key(l, position, c);
    }
  }
  [[nodiscard]] float key(std::size_t l, kvevict::Position position, std::size_t c) const {
    return static_cast<float>(1 + c + 4 * l) + 32.0F * static_cast<float>(position);
  }
  [[nodiscard]] std::size_t offset(std::size_t l, std::size_t slot, std::size_t c,
                                   std::size_t dim) const {
    const std::size_t layer = l / shape_.num_kv_heads;
    const std::size_t head = l % shape_.num_kv_heads;
    const std::size_t page =
        layer * (table_.size() + 3) + static_cast<std::size_t>(table_[slot / page_size_]);
    const std::size_t row =
        head_major_ ? (page * shape_.num_kv_heads + head) * page_size_ + slot % page_size_
                    : (page * page_size_ + slot % page_size_) * shape_.num_kv_heads + head;
    return row * dim + c;
  }
  [[nodiscard]] kvevict::views::PagedView view() {
    lengths_.clear();
    for (const auto& lane : lanes_)
      lengths_.push_back(lane.size());
    const auto pool = head_major_ ? kvevict::views::PagePool::hnd : kvevict::views::PagePool::nhd;
    const auto type = kvevict::ElementType::kF32;
    const std::size_t num_pages = table_.size() + 3;
    return {
        shape_,
        pool(keys_.data(), type, num_pages, page_size_, shape_.num_kv_heads, shape_.head_dim),
        pool(values_.data(), type, num_pages, page_size_, shape_.num_kv_heads, shape_.value_size()),
        page_size_,
        table_,
        lengths_};
  }
  void expect(bool condition, const char* what) {
    if (!condition && difference_.empty())
      difference_ = what;
  }

  static constexpr float kUntouched = -0.5F;

  kvevict::CacheShape shape_;
  kvevict::MaskScope scope_;
  std::size_t page_size_;
  bool head_major_;
  kvevict::Sequence sequence_;
  kvevict::SlotArray state_;
  Lanes lanes_;  // [layers * kv_heads]: what really is in each slot
  std::vector<std::int32_t> table_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::size_t> lengths_;
  std::string difference_;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_FUZZ_REMAP_BODY_HPP_
