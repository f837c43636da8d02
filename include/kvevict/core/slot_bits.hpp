#ifndef KVEVICT_CORE_SLOT_BITS_HPP_
#define KVEVICT_CORE_SLOT_BITS_HPP_

#include "kvevict/config.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// A word whose `count` lowest bits are set; all of them from 64 on.
[[nodiscard]] constexpr std::uint64_t lowest_bits(std::size_t count) noexcept {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

[[nodiscard]] inline bool has_bit(std::span<const std::uint64_t> bits, std::size_t slot) noexcept {
  return (bits[slot / 64] >> (slot % 64) & 1U) != 0;
}

inline void set_bit(std::span<std::uint64_t> bits, std::size_t slot) noexcept {
  bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
}
inline void clear_bit(std::span<std::uint64_t> bits, std::size_t slot) noexcept {
  bits[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
}

/// Set bits of a word. Most words of masks are full or empty, and without an instruction for it,
/// which compilers may not assume, counting takes a call.
[[nodiscard]] inline std::size_t num_set(std::uint64_t word) noexcept {
  if (word == 0)
    return 0;
  return word == ~std::uint64_t{0} ? 64 : static_cast<std::size_t>(std::popcount(word));
}
[[nodiscard]] inline std::size_t count_bits(std::span<const std::uint64_t> bits) noexcept {
  std::size_t count = 0;
  for (const std::uint64_t word : bits)
    count += num_set(word);
  return count;
}

/// Word w of `bits`, without what lies outside slots [first, last).
[[nodiscard]] inline std::uint64_t word_of_range(std::span<const std::uint64_t> bits, std::size_t w,
                                                 std::size_t first, std::size_t last) noexcept {
  const std::size_t start = w * 64;
  if (start >= last)
    return 0;
  return bits[w] & lowest_bits(last - start) & ~lowest_bits(first > start ? first - start : 0);
}
[[nodiscard]] inline std::size_t count_bits(std::span<const std::uint64_t> bits, std::size_t first,
                                            std::size_t last) noexcept {
  std::size_t count = 0;
  for (std::size_t w = first / 64; w * 64 < last; ++w)
    count += num_set(word_of_range(bits, w, first, last));
  return count;
}

template <class Visit>
void for_each_bit(std::span<const std::uint64_t> bits, Visit&& visit) {
  for (std::size_t w = 0; w < bits.size(); ++w) {
    if (bits[w] == ~std::uint64_t{0}) {
      for (std::size_t b = 0; b < 64; ++b)
        visit(w * 64 + b);
    } else {
      for (std::uint64_t word = bits[w]; word != 0; word &= word - 1) {
        visit(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      }
    }
  }
}

/// Moves slots of one lane from the candidates to those that stay, 64 at a time. A slot that is
/// neither is not valid and belongs to no window.
class SlotTaker {
 public:
  SlotTaker(std::span<std::uint64_t> keep, std::span<std::uint64_t> candidates) noexcept
      : keep_(keep), candidates_(candidates) {}

  /// All candidates of [first, last); returns how many there were.
  std::size_t take(std::size_t first, std::size_t last) noexcept {
    std::size_t taken = 0;
    for (std::size_t w = first / 64; w * 64 < last; ++w)
      taken += take_word(w, range(w, first, last));
    return taken;
  }
  /// The first `room` candidates of [first, last); returns how many there were.
  std::size_t take_first(std::size_t first, std::size_t last, std::size_t room) noexcept {
    std::size_t taken = 0;
    for (std::size_t w = first / 64; w * 64 < last && taken < room; ++w) {
      std::uint64_t bits = range(w, first, last) & candidates_[w];
      while (static_cast<std::size_t>(std::popcount(bits)) > room - taken)
        bits &= ~std::bit_floor(bits);
      taken += take_word(w, bits);
    }
    return taken;
  }
  /// The first `count` valid slots of [0, end), as far as they need no more than `room` candidates;
  /// returns how many they needed.
  std::size_t take_oldest(std::size_t end, std::size_t count, std::size_t room) noexcept {
    return take_window(
        end, count, room, [](std::size_t i, std::size_t) { return i; },
        [](std::uint64_t bits) { return bits & (~bits + 1); });
  }
  /// The same of the last ones.
  std::size_t take_newest(std::size_t end, std::size_t count, std::size_t room) noexcept {
    return take_window(
        end, count, room, [](std::size_t i, std::size_t n) { return n - 1 - i; },
        [](std::uint64_t bits) { return std::bit_floor(bits); });
  }

 private:
  [[nodiscard]] static std::uint64_t range(std::size_t w, std::size_t first,
                                           std::size_t last) noexcept {
    const std::size_t start = w * 64;
    return lowest_bits(last - start) & ~lowest_bits(first > start ? first - start : 0);
  }
  // Word by word in the order of `word_at`; where a window ends inside a word, bit by bit.
  template <class WordAt, class FirstBit>
  std::size_t take_window(std::size_t end, std::size_t count, std::size_t room, WordAt&& word_at,
                          FirstBit&& first_bit) noexcept {
    const std::size_t all = room;
    const std::size_t num_words = (end + 63) / 64;
    for (std::size_t i = 0; i < num_words && count > 0 && room > 0; ++i) {
      const std::size_t w = word_at(i, num_words);
      std::uint64_t valid = (keep_[w] | candidates_[w]) & range(w, 0, end);
      const std::size_t num_valid = num_set(valid);
      if (num_valid <= std::min(count, room)) {
        count -= num_valid;
        room -= take_word(w, valid);
        continue;
      }
      for (; valid != 0 && count > 0 && room > 0; --count) {
        const std::uint64_t bit = first_bit(valid);
        valid &= ~bit;
        room -= take_word(w, bit);
      }
    }
    return all - room;
  }
  // Those of `bits` that are candidates.
  std::size_t take_word(std::size_t w, std::uint64_t bits) noexcept {
    bits &= candidates_[w];
    candidates_[w] &= ~bits;
    keep_[w] |= bits;
    return num_set(bits);
  }

  std::span<std::uint64_t> keep_;
  std::span<std::uint64_t> candidates_;
};

}  // namespace detail

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SLOT_BITS_HPP_
