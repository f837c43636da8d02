#ifndef KVEVICT_TESTS_SUPPORT_MASKS_HPP_
#define KVEVICT_TESTS_SUPPORT_MASKS_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvevict_test {

using Slots = std::vector<std::size_t>;

/// A mask from one text per lane, slot 0 first: "1011" evicts slot 1.
[[nodiscard]] inline kvevict::KeepMask mask_of(kvevict::MaskScope scope, std::size_t num_layers,
                                               std::size_t num_kv_heads,
                                               const std::vector<std::string>& lanes) {
  kvevict::KeepMask mask;
  mask.reset(scope, num_layers, num_kv_heads);
  for (const std::string& lane : lanes) {
    const std::span<std::uint64_t> bits = mask.add_lane(lane.size());
    for (std::size_t slot = 0; slot < lane.size(); ++slot) {
      if (lane[slot] == '1')
        bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
    }
  }
  return mask;
}
/// The same with one lane for everything.
[[nodiscard]] inline kvevict::KeepMask mask_of(const std::string& lane) {
  return mask_of(kvevict::MaskScope::kModel, 1, 1, {lane});
}

/// The lane as a text, as mask_of reads it.
[[nodiscard]] inline std::string text_of(const kvevict::KeepMask& mask, std::size_t layer = 0,
                                         std::size_t kv_head = 0) {
  std::string text;
  for (std::size_t slot = 0; slot < mask.seq_len(layer, kv_head); ++slot) {
    text += mask.keeps(layer, kv_head, slot) ? '1' : '0';
  }
  return text;
}

/// Kept slots, ascending.
[[nodiscard]] inline Slots kept_slots(const kvevict::KeepMask& mask, std::size_t layer = 0,
                                      std::size_t kv_head = 0) {
  Slots slots;
  for (std::size_t slot = 0; slot < mask.seq_len(layer, kv_head); ++slot) {
    if (mask.keeps(layer, kv_head, slot))
      slots.push_back(slot);
  }
  return slots;
}

/// first, first + 1, .., last - 1.
[[nodiscard]] inline Slots range(std::size_t first, std::size_t last) {
  Slots slots;
  for (; first < last; ++first)
    slots.push_back(first);
  return slots;
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_MASKS_HPP_
