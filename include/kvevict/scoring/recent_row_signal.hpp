#ifndef KVEVICT_SCORING_RECENT_ROW_SIGNAL_HPP_
#define KVEVICT_SCORING_RECENT_ROW_SIGNAL_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/observation_window.hpp"

#include <cstddef>
#include <string_view>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// What signals have in common that look at the rows of the newest tokens, whether these came with
/// a prompt or one by one.
/// @tparam NewestRows  what is kept of them: RecentRows, RowBits
template <class NewestRows>
class RecentRowSignal {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  [[nodiscard]] auto state() noexcept { return std::tie(rows_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return recent_rows_wanted(sequence, rows_.window());
  }

 protected:
  /// Throws InvalidArgument, naming `where` and `option`, for a window of 0.
  RecentRowSignal(std::string_view where, std::string_view option, const CacheShape& shape,
                  std::size_t window)
      : rows_((detail::require(window > 0, where, option, window, "must be > 0"),
               NewestRows(shape, window))) {}

  NewestRows rows_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RECENT_ROW_SIGNAL_HPP_
