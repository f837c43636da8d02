#ifndef KVEVICT_TESTS_SUPPORT_ROW_SESSION_HPP_
#define KVEVICT_TESTS_SUPPORT_ROW_SESSION_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/shape.hpp"
#include "support/window_cache.hpp"

#include <cstddef>
#include <vector>

namespace kvevict_test {

/// [q_head][row][slot]; a row may end where its token sees no further.
using HeadRows = std::vector<std::vector<std::vector<float>>>;

/// A policy that is handed attention rows as numbers, and its cache. A copy is a fork.
template <class P>
struct RowSession {
  P policy;
  WindowCache cache;

  RowSession(const typename P::Options& options, const kvevict::CacheShape& shape,
             std::size_t capacity = 64)
      : policy(options, shape), cache(shape, capacity) {}

  void append(std::size_t count) {
    policy.append(count);
    cache.append(count);
  }
  /// A prompt of which no rows are given.
  void prompt(std::size_t count) {
    policy.begin(count);
    append(count);
    policy.end_prefill(cache.view());
  }
  void rows(std::size_t layer, const HeadRows& rows) {
    policy.observe_attention(layer, GivenRows(rows).rows());
  }
  /// One decode step with one token; `layers` holds the rows of layer 0, 1, .., of those that the
  /// policy wants.
  void step(const std::vector<HeadRows>& layers) {
    append(1);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (policy.wants_attention(layer))
        rows(layer, layers[layer]);
    }
  }
  /// Cuts if the policy wants to; returns whether it did.
  bool cut() { return cut_if_due(policy, cache); }
  void truncate(std::size_t length) {
    policy.truncate(length);
    cache.truncate(policy.sequence().seq_len(0));
  }
  /// Positions that a lane of the policy holds, ascending.
  [[nodiscard]] std::vector<kvevict::Position> kept(std::size_t lane = 0) const {
    std::vector<kvevict::Position> positions;
    for (std::size_t slot = 0; slot < policy.sequence().seq_len(lane); ++slot) {
      positions.push_back(policy.sequence().position(lane, slot));
    }
    return positions;
  }
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_ROW_SESSION_HPP_
