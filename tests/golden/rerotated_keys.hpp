#ifndef KVEVICT_TESTS_GOLDEN_REROTATED_KEYS_HPP_
#define KVEVICT_TESTS_GOLDEN_REROTATED_KEYS_HPP_

#include "golden/window_prompt.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/rerotation.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/sequence.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace kvevict_test {

/// Compares the keys that `mask` keeps, turned to their new positions as an engine would.
inline void compare_rerotated(const GoldenCase& golden, GoldenReport& report,
                              const std::string& ratio, const WindowPrompt& prompt,
                              const kvevict::Sequence& sequence, const kvevict::KeepMask& mask) {
  const std::size_t dim = prompt.shape.head_dim;
  const kvevict::RotaryEmbedding rotary{.inv_freq = golden.tensor("inv_freq").values};
  std::vector<float> turned;
  for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
    kvevict::for_each_rerotation(sequence, mask, prompt.shape.lane_of(sequence.scope(), 0, head),
                                 [&](const kvevict::Rerotation& move) {
                                   const float* key =
                                       prompt.keys.data() + (head * prompt.len + move.slot) * dim;
                                   const auto row = turned.insert(turned.end(), key, key + dim);
                                   rotary.turn(move.shift, &*row);
                                 });
  }
  const std::string record = "keys_rerotated." + ratio;
  report.scores(record, golden.tensor(record).values, turned);
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_REROTATED_KEYS_HPP_
