#ifndef KVEVICT_TESTS_GOLDEN_EXPECTED_PROMPT_HPP_
#define KVEVICT_TESTS_GOLDEN_EXPECTED_PROMPT_HPP_

#include "golden/window_prompt.hpp"
#include "kvevict/core/rotary.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvevict_test {

inline kvevict::RotaryEmbedding rotary_of(const GoldenCase& golden) {
  return {.inv_freq = golden.tensor("inv_freq").values};
}

/// A prompt whose queries, given before rotary embedding and without those of the sinks, are turned
/// as attention uses them. The sinks have queries that show if they are counted.
inline WindowPrompt expected_prompt(const GoldenCase& golden) {
  WindowPrompt prompt(golden, "n");
  const kvevict::RotaryEmbedding rotary = rotary_of(golden);
  const std::size_t dim = prompt.shape.head_dim;
  const std::size_t sinks = golden.count("n_sink");
  const std::vector<float> given = golden.tensor("queries_prerope").floats();
  std::vector<float>& queries = prompt.queries.front();
  queries.assign(prompt.shape.num_q_heads * prompt.len * dim, 100.0F);
  const float* from = given.data();
  for (std::size_t head = 0; head < prompt.shape.num_q_heads; ++head) {
    for (std::size_t row = sinks; row < prompt.len; ++row, from += dim) {
      float* to = queries.data() + (head * prompt.len + row) * dim;
      std::copy_n(from, dim, to);
      rotary.turn(static_cast<double>(row), to);
    }
  }
  prompt.values.resize(prompt.keys.size());  // not read in a case that has none
  return prompt;
}

/// What all policies that look at queries to come are told.
template <class Options>
void set_expected_options(const GoldenCase& golden, Options& options) {
  options.num_sink_tokens = golden.count("n_sink");
  options.only_at_prefill_end = true;
  options.num_future = golden.count("n_future_positions");
  options.rotary = rotary_of(golden);
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_EXPECTED_PROMPT_HPP_
