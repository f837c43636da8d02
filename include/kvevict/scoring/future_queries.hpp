#ifndef KVEVICT_SCORING_FUTURE_QUERIES_HPP_
#define KVEVICT_SCORING_FUTURE_QUERIES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/scoring/row_moments.hpp"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Where queries to come are looked for, counted from the next token on.
enum class FutureOffsets : std::uint8_t {
  kAll,          ///< 0, 1, .., num_future - 1
  kPowersOfTwo,  ///< 1, 2, 4, .. up to num_future
};

struct FutureQueriesOptions {
  RotaryEmbedding rotary = {};
  std::size_t num_future = 512;     ///< positions behind the text over which rotation is averaged
  std::size_t num_sink_tokens = 4;  ///< first tokens, whose queries are like no others
  bool with_covariance = true;
  FutureOffsets offsets = FutureOffsets::kAll;
  bool rotated_only = false;       ///< channels that do not turn are 0 in the mean
  bool with_band_lengths = false;  ///< gather QueryStatistics::band_lengths
  /// Of the model, gathered before; without it, of this sequence's queries so far.
  std::shared_ptr<const QueryStatistics> statistics = nullptr;
};

/// What queries to come will be like: mean and covariance of the queries before rotary embedding,
/// turned by the rotation R averaged over positions to come, R m and R S R^T. Averaging shrinks
/// channels that turn fast. Where the model scales what it turns, statistics are without the scale
/// and R is with it, so that R m meets keys as they are cached.
///
/// Gathers the statistics itself, from the queries as attention used them turned back, unless they
/// are given. They grow with every query, of prompt and decoding; truncate leaves them.
class FutureQueries {
 public:
  /// Throws InvalidArgument, naming `where` and the option.
  FutureQueries(std::string_view where, const CacheShape& shape, FutureQueriesOptions options)
      : options_(std::move(options)) {
    options_.rotary.check(where, shape.head_dim);
    detail::require(options_.num_future > 0, where, "num_future", options_.num_future,
                    "must be > 0");
    if (options_.statistics != nullptr) {
      const QueryStatistics& given = *options_.statistics;
      detail::check_same_shape(given.shape(), shape, where);
      detail::require(given.has_covariance() || !options_.with_covariance, where,
                      "query_statistics.has_covariance()", 0, "must be 1");
    } else {
      own_.statistics.emplace_back(
          shape, options_.with_covariance,
          options_.with_band_lengths ? options_.rotary : RotaryEmbedding{});
    }
    detail::require(
        !options_.with_band_lengths || statistics().num_bands() == options_.rotary.num_pairs(),
        where, "query_statistics.num_bands()", statistics().num_bands(),
        "must be rotary.inv_freq.size()");
    for (std::size_t pair = 0; pair < options_.rotary.num_pairs(); ++pair) {
      std::complex<double> sum = 0.0;
      for_each_offset(
          [&](std::size_t offset) { sum += options_.rotary.factor(pair, to_double(offset)); });
      average_.push_back(options_.rotary.attention_scaling * sum / to_double(num_offsets()));
    }
  }

  /// Calls visit(offset) for each position behind the text.
  template <class Visit>
  void for_each_offset(Visit&& visit) const {
    if (options_.offsets == FutureOffsets::kAll) {
      for (std::size_t offset = 0; offset < options_.num_future; ++offset)
        visit(offset);
    } else {
      for (std::size_t i = 0; i < num_offsets(); ++i)
        visit(std::size_t{1} << i);
    }
  }
  [[nodiscard]] std::size_t num_offsets() const noexcept {
    return options_.offsets == FutureOffsets::kAll
               ? options_.num_future
               : static_cast<std::size_t>(std::bit_width(options_.num_future));
  }
  [[nodiscard]] const RotaryEmbedding& rotary() const noexcept { return options_.rotary; }

  [[nodiscard]] auto state() noexcept { return std::tie(own_); }

  [[nodiscard]] const QueryStatistics& statistics() const noexcept {
    return options_.statistics != nullptr ? *options_.statistics : own_.statistics.front();
  }
  [[nodiscard]] bool are_given() const noexcept { return options_.statistics != nullptr; }

  /// @param rows  of the newest tokens, as attention used them
  /// @param lane  of the layer: padding has no queries
  std::size_t observe(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                      const Lane& lane, const kernels::KernelSet& kernel) {
    if (are_given())
      return 0;
    QueryStatistics& statistics = own_.statistics.front();
    const CacheShape& shape = statistics.shape();
    const std::size_t padding = padding_of(sequence, lane.valid);
    const RotaryEmbedding& rotary = options_.rotary;
    RotaryWalk walk(rotary, 1.0 / rotary.attention_scaling,
                    own_.scratch.doubles(kWalk, RotaryWalk::num_doubles(rotary)));
    // Blocks of rows, [num_q_heads, block, head_dim]: one row of all heads is read after another.
    const std::size_t block = std::min(RowMoments::kBlockRows, rows.num_rows);
    const std::size_t head_size = block * shape.head_dim;
    const std::span<float> queries = own_.scratch.floats(kQueries, shape.num_q_heads * head_size);
    std::size_t count = 0;
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t behind = rows.num_rows - r;
      const std::size_t position = sequence.length() - behind;
      if (lane.has_token(lane.seq_len - behind) && position >= padding + options_.num_sink_tokens) {
        const std::span<const double> back = walk.back_from(to_double(position - padding));
        for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
          float* query = queries.data() + head * head_size + count * shape.head_dim;
          std::copy_n(rows.row(head, r), shape.head_dim, query);
          rotary.turn_pairs(back, query);
        }
        ++count;
      }
      if (count < block && behind > 1)
        continue;
      for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
        non_finite += statistics.add_rows(layer, head,
                                          queries.subspan(head * head_size, count * shape.head_dim),
                                          kernel, own_.scratch);
      }
      count = 0;
    }
    return non_finite;
  }

  // What follows may be called by several threads, each with its own scratch, of which it uses the
  // buffers of doubles up to kFirstFreeDoubles.
  static constexpr std::size_t kFirstFreeDoubles = 3;

  /// Writes R m [head_dim] for the text as it is now.
  void mean(const Sequence& sequence, std::size_t layer, std::size_t q_head, Scratch& scratch,
            std::span<float> out) const {
    turned_mean(layer, q_head, average_to(sequence, scratch), scratch, out);
  }
  /// The same with the rotation to one position, `offset` behind the text.
  void mean_at(const Sequence& sequence, std::size_t offset, std::size_t layer, std::size_t q_head,
               Scratch& scratch, std::span<float> out) const {
    const double position = to_double(offset) + next_position(sequence);
    const Factors factors = make_factors(scratch, [&](std::size_t pair) {
      return options_.rotary.attention_scaling * options_.rotary.factor(pair, position);
    });
    turned_mean(layer, q_head, factors, scratch, out);
  }
  /// Writes the lower-triangular C [head_dim, head_dim] with C C^T = R S R^T.
  void covariance_factor(const Sequence& sequence, std::size_t layer, std::size_t q_head,
                         Scratch& scratch, std::span<float> out) const {
    const std::span<double> matrix = turned_covariance(sequence, layer, q_head, scratch);
    kernels::semidefinite_cholesky(matrix.data(), statistics().shape().head_dim, out.data());
  }
  /// R S R^T [head_dim, head_dim], valid until the scratch is used again.
  std::span<double> turned_covariance(const Sequence& sequence, std::size_t layer,
                                      std::size_t q_head, Scratch& scratch) const {
    const std::size_t dim = statistics().shape().head_dim;
    const std::span<double> matrix = scratch.doubles(kMatrix, dim * dim);
    statistics().covariance(layer, q_head, matrix);
    const Factors factors = average_to(sequence, scratch);
    // R (R S)^T = R S R^T, S being symmetric: rows are turned, the matrix is transposed, twice.
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t row = 0; row < dim; ++row)
        options_.rotary.turn_pairs(factors, matrix.data() + row * dim);
      for (std::size_t i = 0; i < dim; ++i) {
        for (std::size_t j = 0; j < i; ++j)
          std::swap(matrix[i * dim + j], matrix[j * dim + i]);
      }
    }
    return matrix;
  }

 private:
  // Statistics of this sequence, as state: append and apply change nothing. What lies beside them
  // is memory that is kept between calls.
  struct Own {
    std::vector<QueryStatistics> statistics;  // one, or none where they are given
    Scratch scratch;

    void append(std::size_t /*count*/) const noexcept {}
    void apply(const KeepMask& /*mask*/) const noexcept {}
    void truncate(const Sequence& sequence) noexcept {
      if (sequence.length() == 0)
        reset();
    }
    void reset() noexcept {
      for (QueryStatistics& own : statistics)
        own.clear();
    }
  };

  [[nodiscard]] static std::size_t padding_of(const Sequence& sequence,
                                              std::span<const std::uint8_t> valid) noexcept {
    const auto invalid =
        static_cast<std::size_t>(std::count(valid.begin(), valid.end(), std::uint8_t{0}));
    return std::max(sequence.first_prompt_padding(), invalid);
  }
  [[nodiscard]] static double to_double(std::size_t count) noexcept {
    return static_cast<double>(count);
  }
  // Padding has no position.
  [[nodiscard]] static double next_position(const Sequence& sequence) noexcept {
    return to_double(sequence.length() - sequence.first_prompt_padding());
  }

  // Buffers of Own; the first ones are QueryStatistics::add_rows'.
  static constexpr std::size_t kQueries = 1;  // of floats
  static constexpr std::size_t kWalk = 1;     // of doubles

  // Buffers of doubles.
  static constexpr std::size_t kRow = 0;
  static constexpr std::size_t kMatrix = 1;
  static constexpr std::size_t kFactors = 2;

  // A rotation, for RotaryEmbedding::turn_pairs.
  using Factors = std::span<const double>;

  void turned_mean(std::size_t layer, std::size_t q_head, Factors factors, Scratch& scratch,
                   std::span<float> out) const {
    const std::span<const double> mean = statistics().mean(layer, q_head);
    const std::span<double> row = scratch.doubles(kRow, mean.size());
    std::copy(mean.begin(), mean.end(), row.begin());
    options_.rotary.turn_pairs(factors, row.data());
    if (options_.rotated_only) {
      const std::size_t rotary_dim = 2 * options_.rotary.num_pairs();
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(rotary_dim), row.end(), 0.0);
    }
    std::copy(row.begin(), row.end(), out.begin());
  }
  // The averaged rotation from position 0 to those behind the text.
  [[nodiscard]] Factors average_to(const Sequence& sequence, Scratch& scratch) const {
    const double next = next_position(sequence);
    return make_factors(scratch, [&](std::size_t pair) {
      return average_[pair] * options_.rotary.factor(pair, next);
    });
  }
  template <class FactorOf>
  [[nodiscard]] Factors make_factors(Scratch& scratch, FactorOf&& factor_of) const {
    const std::span<double> factors = scratch.doubles(kFactors, 2 * average_.size());
    for (std::size_t pair = 0; pair < average_.size(); ++pair) {
      const std::complex<double> factor = factor_of(pair);
      factors[pair] = factor.real();
      factors[average_.size() + pair] = factor.imag();
    }
    return factors;
  }

  FutureQueriesOptions options_;
  std::vector<std::complex<double>> average_;  // over num_future positions from 0 on
  Own own_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_FUTURE_QUERIES_HPP_
