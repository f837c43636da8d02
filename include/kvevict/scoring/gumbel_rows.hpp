#ifndef KVEVICT_SCORING_GUMBEL_ROWS_HPP_
#define KVEVICT_SCORING_GUMBEL_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/random_stream.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/sharpened_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct GumbelOptions {
  double tau_init = 1.0;            ///< temperature of a prompt's rows, > 0
  double tau_end = 2.0;             ///< of decode step `generation_len` and later ones, > 0
  std::size_t generation_len = 64;  ///< decode steps over which it moves, > 0 (T)
  bool noise = true;                ///< false: temperature alone
  std::uint64_t seed = 0;
  std::uint64_t sequence_id = 0;  ///< sequences that run side by side draw for themselves
};

/// A signal that is handed regularised rows in the place of the attention's own (Keyformer, arXiv
/// 2403.09054, equations 7 to 10): with x the logits of a row, over all slots that it sees,
///
///   a'_i = softmax_i( (x_i + g_i) / tau ),  g from the standard Gumbel distribution,
///   tau(t) = tau_init + min(t, T) (tau_end - tau_init) / T,
///
/// t being 0 in a prompt and counting the decode steps after the newest one from 1.
///
/// Logits come back from the row as log a, up to a constant that cancels; what had underflowed
/// stays 0. With E = -log u, which is e^-g, no logarithm of the row is taken: a' is (a / E)^(1/tau)
/// over its sum. Every pair of query and token of every query head has a number of its own, made of
/// (seed, sequence, layer, head, both positions): chunks, threads and evictions do not change it.
template <Signal S>
class GumbelRows {
 public:
  static constexpr Inputs kRequiredInputs = S::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = S::kAttentionUse;

  /// Throws InvalidArgument, naming `where`.
  GumbelRows(std::string_view where, const GumbelOptions& options, S signal)
      : options_(options), signal_(std::move(signal)) {
    for (const auto& [field, tau] :
         {std::pair{"tau_init", options.tau_init}, std::pair{"tau_end", options.tau_end}}) {
      detail::require(tau > 0.0 && std::isfinite(tau), where, field, tau, "must be finite and > 0");
    }
    detail::require(options.generation_len > 0, where, "generation_len", options.generation_len,
                    "must be > 0");
  }

  [[nodiscard]] auto state() noexcept { return signal_.state(); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    return signal_.wanted_rows(sequence, layer);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t visible = rows.visible(r);
      regular_.resize(std::max(regular_.size(), rows.group_size * visible));
      GroupRows row = rows;
      row.num_rows = 1;
      row.first_visible = visible;
      row.first_position = rows.first_position + r;
      row.data = regular_.data();
      row.head_stride = row.row_stride = static_cast<std::ptrdiff_t>(visible);
      row.log_sums = nullptr;  // of the attention, not of these
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        const std::span<float> regular(regular_.data() + h * visible, visible);
        std::copy_n(rows.row(h, r), visible, regular.begin());
        if (options_.noise)
          add_noise(row, h, sequence, regular);
        non_finite +=
            sharpen(static_cast<float>(1.0 / tau(sequence, row.first_position)), kernel, regular);
      }
      signal_.observe_rows(row, sequence, kernel);
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const { signal_.score(input, scores); }

  /// Temperature of the row of the token at `position`.
  [[nodiscard]] double tau(const Sequence& sequence, std::size_t position) const noexcept {
    const auto prompt_end = sequence.prompt_end();
    const std::size_t step = position < prompt_end ? 0 : position - prompt_end + 1;
    const double share = static_cast<double>(std::min(step, options_.generation_len)) /
                         static_cast<double>(options_.generation_len);
    return options_.tau_init + share * (options_.tau_end - options_.tau_init);
  }
  /// Standard Gumbel noise of a query and a token, for one query head counted through the model.
  [[nodiscard]] double noise(std::size_t head, std::size_t query,
                             std::size_t token) const noexcept {
    return -std::log(static_cast<double>(exponential(query_bits(head, query), token)));
  }

 private:
  [[nodiscard]] std::uint64_t query_bits(std::size_t head, std::size_t query) const noexcept {
    return detail::mix_bits(detail::lane_counter(options_.seed, options_.sequence_id, head) +
                            query);
  }
  // -log of a number that is uniform in (0, 1).
  [[nodiscard]] static float exponential(std::uint64_t query_bits, std::size_t token) noexcept {
    const auto bits = static_cast<double>(detail::mix_bits(query_bits + token) >> 11U);
    return static_cast<float>(-std::log((bits + 0.5) * 0x1p-53));
  }
  void add_noise(const GroupRows& row, std::size_t head_in_group, const Sequence& sequence,
                 std::span<float> entries) const noexcept {
    const CacheShape& shape = sequence.shape();
    const std::size_t lane = shape.lane_of(sequence.scope(), row.layer, row.kv_head);
    const std::uint64_t bits =
        query_bits(row.layer * shape.num_q_heads + row.kv_head * row.group_size + head_in_group,
                   row.first_position);
    for (std::size_t slot = 0; slot < entries.size(); ++slot) {
      entries[slot] /= exponential(bits, static_cast<std::size_t>(sequence.position(lane, slot)));
    }
  }

  GumbelOptions options_;
  S signal_;
  std::vector<float> regular_;  // one row of each query head of a group
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_GUMBEL_ROWS_HPP_
