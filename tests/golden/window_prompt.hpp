#ifndef KVEVICT_TESTS_GOLDEN_WINDOW_PROMPT_HPP_
#define KVEVICT_TESTS_GOLDEN_WINDOW_PROMPT_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvevict_test {

/// A prompt of a golden case as an engine has it: the cache, the last queries and, where the case
/// gives them, their attention rows.
struct WindowPrompt {
  kvevict::CacheShape shape;
  std::size_t len = 0;                      // tokens
  std::size_t window = 0;                   // rows that queries and attention have
  mutable std::vector<float> keys;          // [layers, num_kv_heads, len, head_dim]
  mutable std::vector<float> values;        // the same, or empty
  std::vector<std::vector<float>> queries;  // each layer's [num_q_heads, window, head_dim], or none
  std::vector<std::vector<float>> attention;  // each layer's [num_q_heads, window, len], or none

  WindowPrompt(const GoldenCase& golden, const std::string& window_name)
      : WindowPrompt(golden, golden.count(window_name)) {}
  /// @param num_rows  that queries and attention have; 0: there are none
  /// @param readings  the file's keys (and values, or not) hold the text so many times in a row, of
  ///                  which the first is the prompt
  WindowPrompt(const GoldenCase& golden, std::size_t num_rows, std::size_t readings = 1)
      : len(golden.count("n")), window(num_rows) {
    const bool one_layer = !golden.has("num_layers");
    shape = {.num_layers = one_layer ? 1 : golden.count("num_layers"),
             .num_q_heads = golden.count("num_q_heads"),
             .num_kv_heads = golden.count("num_kv_heads"),
             .head_dim = golden.count("head_dim")};
    for (std::size_t l = 0; l < shape.num_layers; ++l) {
      const std::string layer = one_layer ? "" : "L" + std::to_string(l) + ".";
      if (golden.has(layer + "keys"))
        append_cache(golden, layer + "keys", readings, keys);
      if (golden.has(layer + "values"))
        append_cache(golden, layer + "values", readings, values);
      queries.emplace_back();
      if (window == 0)
        continue;
      if (golden.has(layer + "queries")) {
        append(golden, layer + "queries", shape.num_q_heads * window * shape.head_dim,
               queries.back());
      }
      if (golden.has(layer + "attention")) {
        append(golden, layer + "attention", shape.num_q_heads * window * len,
               attention.emplace_back());
      }
    }
  }

  /// The cache after `count` tokens.
  [[nodiscard]] kvevict::views::ContiguousView view(std::size_t count) const {
    const auto tensor = [&](std::vector<float>& data) {
      return data.empty() ? kvevict::views::Tensor{}
                          : kvevict::views::Tensor::hnd(data.data(), kvevict::ElementType::kF32,
                                                        len, shape.num_kv_heads, shape.head_dim);
    };
    return {shape, tensor(keys), tensor(values), count};
  }
  /// `count` rows of the window from `first` on.
  [[nodiscard]] kvevict::QueryRows query_rows(std::size_t layer, std::size_t first,
                                              std::size_t count) const {
    return {.data = queries[layer].data() + first * shape.head_dim,
            .num_q_heads = shape.num_q_heads,
            .num_rows = count,
            .head_stride = static_cast<std::ptrdiff_t>(window * shape.head_dim),
            .row_stride = static_cast<std::ptrdiff_t>(shape.head_dim)};
  }
  [[nodiscard]] kvevict::AttentionRows attention_rows(std::size_t layer, std::size_t first,
                                                      std::size_t count) const {
    return {.data = attention[layer].data() + first * len,
            .num_q_heads = shape.num_q_heads,
            .num_rows = count,
            .head_stride = static_cast<std::ptrdiff_t>(window * len),
            .row_stride = static_cast<std::ptrdiff_t>(len)};
  }

  /// The ways in which an engine may feed a prompt; all have to end the same.
  struct Way {
    std::string name;
    bool rows;          // attention rows instead of queries
    std::size_t chunk;  // tokens per append; 0: the prompt in one piece, without append
  };
  [[nodiscard]] std::vector<Way> ways() const {
    if (window == 0)
      return {{"cache alone", false, 0}};
    std::vector<Way> result;
    if (!queries.front().empty()) {
      result.push_back({"queries", false, 0});
      result.push_back({"queries in chunks", false, 7});
    }
    if (!attention.empty()) {
      result.push_back({"rows", true, 0});
      result.push_back({"rows in chunks", true, 3});
    }
    return result;
  }
  template <class P>
  void feed(P& policy, const Way& way) const {
    policy.begin(len);
    for (std::size_t done = 0; done < len;) {
      const std::size_t count = way.chunk == 0 ? len : std::min(way.chunk, len - done);
      if (way.chunk != 0)
        policy.append(count);
      done += count;
      const std::size_t before = len - std::min(len, window);  // tokens before the window
      if (done <= before)
        continue;
      const std::size_t first = std::max(done - count, before) - before;
      const std::size_t rows = done - before - first;
      for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
        if (policy.wanted_attention_rows(layer) > rows) {
          throw std::logic_error("more rows are wanted than the window has");
        }
        if constexpr (P::kAttentionUse == kvevict::AttentionUse::kNone) {
          continue;
        } else if constexpr (P::kAttentionUse == kvevict::AttentionUse::kQueries) {
          policy.observe_queries(layer, query_rows(layer, first, rows), view(done));
        } else if (way.rows) {
          policy.observe_attention(layer, attention_rows(layer, first, rows));
        } else {
          policy.observe_queries(layer, query_rows(layer, first, rows), view(done));
        }
      }
    }
    policy.end_prefill(view(len));
  }
  /// Calls visit(rows) for the window's rows of every KV head of a layer.
  template <class Visit>
  void visit_rows(std::size_t layer, Visit&& visit) const {
    kvevict::RowsFromQueries from_queries;
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      if (attention.empty()) {
        from_queries.visit(query_rows(layer, 0, window), shape, layer, head,
                           view(len).lane(layer, head), len, window, kvevict::kernels::best(),
                           visit);
      } else {
        kvevict::visit_given_rows(attention_rows(layer, 0, window), shape, layer, head, len, len,
                                  window, visit);
      }
    }
  }
  /// Scores of all slots of a layer, [num_kv_heads, len], before any normalisation.
  template <class P>
  [[nodiscard]] std::vector<float> scores(const P& policy, std::size_t layer) const {
    const auto full = view(len);
    const kvevict::ViewRef ref(full);
    kvevict::Scratch scratch;
    std::vector<float> result(shape.num_kv_heads * len);
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch},
                            shape.lane_of(policy.sequence().scope(), layer, head),
                            std::span(result).subspan(head * len, len));
    }
    return result;
  }
  /// The same of all lanes after the stages that look at several, [lanes, len].
  template <class P>
  [[nodiscard]] std::vector<float> finished_scores(const P& policy) const {
    const auto full = view(len);
    const kvevict::ViewRef ref(full);
    kvevict::Scratch scratch;
    const kvevict::ScoreInput input{ref, policy.sequence(), kvevict::kernels::best(), scratch};
    std::vector<float> all(policy.sequence().num_lanes() * len);
    std::vector<kvevict::ScoredLane> lanes;
    for (std::size_t lane = 0; lane * len < all.size(); ++lane) {
      lanes.push_back({lane, std::span(all).subspan(lane * len, len), {}, {}});
      policy.method().score(input, lane, lanes.back().scores);
    }
    if constexpr (requires { policy.method().normalise(lanes, input); })
      policy.method().normalise(lanes, input);
    return all;
  }
  /// The mask as [layers, num_kv_heads, len].
  template <class P>
  [[nodiscard]] std::vector<int> keep(const P& policy) const {
    const kvevict::KeepMask& mask = policy.select(view(len));
    std::vector<int> result;
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        for (std::size_t slot = 0; slot < len; ++slot) {
          result.push_back(mask.keeps(layer, head, slot) ? 1 : 0);
        }
      }
    }
    return result;
  }
  /// The first `count` slots of each row of a [rows, len] array.
  [[nodiscard]] std::vector<double> first_slots(const std::vector<float>& all,
                                                std::size_t count) const {
    std::vector<double> result;
    for (std::size_t row = 0; row < all.size(); row += len) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(row);
      result.insert(result.end(), first, first + static_cast<std::ptrdiff_t>(count));
    }
    return result;
  }

 private:
  void append_cache(const GoldenCase& golden, const std::string& name, std::size_t readings,
                    std::vector<float>& to) const {
    const std::vector<float> data = golden.tensor(name).floats();
    const std::size_t row = len * shape.head_dim;
    const std::size_t stored = data.size() == shape.num_kv_heads * row ? row : readings * row;
    if (data.size() != shape.num_kv_heads * stored)
      throw std::runtime_error(golden.path() + ": size of " + name);
    for (std::size_t first = 0; first < data.size(); first += stored) {
      const auto begin = data.begin() + static_cast<std::ptrdiff_t>(first);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
    }
  }
  static void append(const GoldenCase& golden, const std::string& name, std::size_t size,
                     std::vector<float>& to) {
    const std::vector<float> data = golden.tensor(name).floats();
    if (data.size() != size)
      throw std::runtime_error(golden.path() + ": size of " + name);
    to.insert(to.end(), data.begin(), data.end());
  }
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_WINDOW_PROMPT_HPP_
