#ifndef KVEVICT_SCORING_QUERY_STATISTICS_BYTES_HPP_
#define KVEVICT_SCORING_QUERY_STATISTICS_BYTES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/scoring/query_statistics.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// Statistics of queries as bytes, for a file or a message. The library itself opens no files.
//
// Little endian: "KVQS", version 1, layers, query heads, KV heads, head_dim, bands, whether there
// are covariances, pairing of the bands, all u32; frequencies of the bands f64; then for each layer
// and query head a count u64 and, where it is not 0, mean [head_dim], mean lengths [bands] and
// covariance [head_dim, head_dim] in f32.
KVEVICT_NAMESPACE_BEGIN
namespace detail {

inline constexpr std::string_view kStatisticsMagic = "KVQS";
inline constexpr std::uint32_t kStatisticsVersion = 1;

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
void append_bytes(std::vector<std::byte>& bytes, T value) {
  const auto bits = std::bit_cast<BitsOf<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes.push_back(static_cast<std::byte>(bits >> (8 * i)));
}
inline void append_floats(std::vector<std::byte>& bytes, std::span<const double> values) {
  for (const double value : values)
    append_bytes(bytes, static_cast<float>(value));
}

/// Takes numbers off the front of `bytes`.
class ByteReader {
 public:
  ByteReader(std::string_view where, std::span<const std::byte> bytes)
      : where_(where), bytes_(bytes) {}

  template <class T>
  [[nodiscard]] T take() {
    need(sizeof(T));
    BitsOf<T> bits = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bits |= static_cast<BitsOf<T>>(std::to_integer<std::uint64_t>(bytes_[i]) << (8 * i));
    bytes_ = bytes_.subspan(sizeof(T));
    return std::bit_cast<T>(bits);
  }
  template <class T>
  [[nodiscard]] std::vector<T> take(std::size_t count) {
    need(count * sizeof(T));
    std::vector<T> values(count);
    for (T& value : values)
      value = take<T>();
    return values;
  }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size(); }

 private:
  void need(std::size_t count) const {
    if (bytes_.size() < count)
      throw_invalid_argument(where_, "the bytes end in the middle of a number: were all written?");
  }

  std::string_view where_;
  std::span<const std::byte> bytes_;
};

}  // namespace detail

/// All of `statistics` as bytes, rounded to f32.
[[nodiscard]] inline std::vector<std::byte> query_statistics_bytes(
    const QueryStatistics& statistics) {
  const CacheShape& shape = statistics.shape();
  const RotaryEmbedding& rotary = statistics.rotary();
  std::vector<std::byte> bytes;
  for (const char letter : detail::kStatisticsMagic)
    bytes.push_back(static_cast<std::byte>(letter));
  for (const std::size_t number :
       {std::size_t{detail::kStatisticsVersion}, shape.num_layers, shape.num_q_heads,
        shape.num_kv_heads, shape.head_dim, statistics.num_bands(),
        std::size_t{statistics.has_covariance()}, static_cast<std::size_t>(rotary.pairing)})
    detail::append_bytes(bytes, static_cast<std::uint32_t>(number));
  for (const double frequency : rotary.inv_freq)
    detail::append_bytes(bytes, frequency);
  std::vector<double> covariance(statistics.has_covariance() ? shape.head_dim * shape.head_dim : 0);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      const std::size_t count = statistics.count(layer, head);
      detail::append_bytes(bytes, std::uint64_t{count});
      if (count == 0)
        continue;
      detail::append_floats(bytes, statistics.mean(layer, head));
      detail::append_floats(bytes, statistics.band_lengths(layer, head));
      if (!covariance.empty())
        statistics.covariance(layer, head, covariance);
      detail::append_floats(bytes, covariance);
    }
  }
  return bytes;
}

/// What query_statistics_bytes wrote, of a model with this shape and this rotary embedding. Throws
/// InvalidArgument for statistics of another model, for other bytes and for numbers that are not
/// finite.
[[nodiscard]] inline QueryStatistics query_statistics_from_bytes(std::span<const std::byte> bytes,
                                                                 const CacheShape& shape,
                                                                 const RotaryEmbedding& rotary) {
  constexpr std::string_view kWhere = "query_statistics_from_bytes";
  const std::size_t letters = std::min(bytes.size(), detail::kStatisticsMagic.size());
  const bool is_known = std::equal(
      bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(letters),
      detail::kStatisticsMagic.begin(), detail::kStatisticsMagic.end(),
      [](std::byte byte, char letter) { return byte == static_cast<std::byte>(letter); });
  if (!is_known)
    detail::throw_invalid_argument(kWhere, "these are no statistics of queries");
  detail::ByteReader reader(kWhere, bytes.subspan(letters));
  const auto number = [&] { return reader.take<std::uint32_t>(); };
  const auto expect = [&](std::string_view field, std::size_t wanted) {
    const std::uint32_t found = number();
    detail::require(found == wanted, kWhere, field, found,
                    "must be " + std::to_string(wanted) + ": of another model?");
  };
  const std::uint32_t version = number();
  detail::require(version == detail::kStatisticsVersion, kWhere, "version", version,
                  "is not known here");
  expect("num_layers", shape.num_layers);
  expect("num_q_heads", shape.num_q_heads);
  expect("num_kv_heads", shape.num_kv_heads);
  expect("head_dim", shape.head_dim);
  const std::uint32_t num_bands = number();
  detail::require(num_bands == 0 || num_bands == rotary.num_pairs(), kWhere, "num_bands", num_bands,
                  "must be rotary.inv_freq.size(), or 0: of another model?");
  const bool with_covariance = number() != 0;
  const std::uint32_t pairing = number();
  if (num_bands > 0 && (pairing != static_cast<std::uint32_t>(rotary.pairing) ||
                        reader.take<double>(num_bands) != rotary.inv_freq))
    detail::throw_invalid_argument(kWhere, "the rotary embedding is another one: another model?");
  QueryStatistics statistics(shape, with_covariance, num_bands > 0 ? rotary : RotaryEmbedding{});
  const auto floats = [&](std::size_t count) {
    std::vector<float> values = reader.take<float>(count);
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
      detail::throw_invalid_argument(kWhere, "a number is not finite");
    return values;
  };
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      const auto count = reader.take<std::uint64_t>();
      if (count == 0)
        continue;
      const std::vector<float> mean = floats(shape.head_dim);
      const std::vector<float> lengths = floats(num_bands);
      const std::vector<float> covariance =
          floats(with_covariance ? shape.head_dim * shape.head_dim : 0);
      statistics.set(layer, head, mean, covariance, lengths, static_cast<std::size_t>(count));
    }
  }
  detail::require(reader.left() == 0, kWhere, "bytes behind the statistics", reader.left(),
                  "must be 0");
  return statistics;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_QUERY_STATISTICS_BYTES_HPP_
