#ifndef KVEVICT_TESTS_GOLDEN_GROWING_TEXT_HPP_
#define KVEVICT_TESTS_GOLDEN_GROWING_TEXT_HPP_

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "support/golden.hpp"
#include "support/window_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace kvevict_test {

/// A case of a text that grows, and its cache: `prompts` [.., 2], spans of positions, and what is
/// decoded between and behind them, token by token; keys [num_layers, num_kv_heads, n, head_dim]
/// and queries [num_layers, num_q_heads, n, head_dim], if the case has them.
class GrowingText {
 public:
  // Lengths of the pieces that prompts come in.
  static constexpr std::size_t kWhole = 1000;
  static constexpr std::size_t kPiece = 5;

  explicit GrowingText(const GoldenCase& golden)
      : golden_(golden),
        shape_{.num_layers = golden.count("num_layers"),
               .num_q_heads = golden.count("num_q_heads"),
               .num_kv_heads = golden.count("num_kv_heads"),
               .head_dim = golden.count("head_dim")},
        len_(golden.count("n")),
        cache_(shape_, len_) {
    if (golden.has("keys"))
      keys_ = golden.tensor("keys").floats();
    if (golden.has("queries"))
      queries_ = golden.tensor("queries").floats();
  }

  [[nodiscard]] const kvevict::CacheShape& shape() const { return shape_; }
  [[nodiscard]] std::size_t len() const { return len_; }

  /// Feeds the text, prompts in pieces of `chunk` tokens, cuts whenever the policy wants to, and
  /// compares X.gone of the run, [num_layers, num_kv_heads, n]: how many tokens the text had at the
  /// cut that each went in, a whole prompt at a time; 0 where it stays.
  ///
  /// @param observe  observe(first, count): `count` tokens from position `first` on are in the
  ///                 cache; hands over what the policy wants of them before observe_cache
  template <class P, class Observe>
  void run(GoldenReport& report, const std::string& name, P& policy, std::size_t chunk,
           Observe&& observe) {
    report.covers(P::kName);
    std::vector<std::size_t> gone(shape_.num_layers * shape_.num_kv_heads * len_, 0);
    const auto append = [&](std::size_t first, std::size_t count) {
      policy.append(count);
      write(first, count);
      observe(first, count);
      policy.observe_cache(cache_.view());
    };
    const std::vector<double>& prompts = golden_.tensor("prompts").values;
    std::size_t prompt = 0;
    for (std::size_t length = 0; length < len_;) {
      std::size_t end = length + 1;
      if (prompt < prompts.size() && prompts[prompt] == static_cast<double>(length)) {
        end = static_cast<std::size_t>(prompts[prompt + 1]);
        prompt += 2;
        policy.begin(end - length);
        for (; end - length > chunk; length += chunk) {
          append(length, chunk);
          cut(policy, end, gone);
        }
        append(length, end - length);
        policy.end_prefill(cache_.view());
      } else {
        append(length, 1);
      }
      cut(policy, end, gone);
      length = end;
    }
    report.equal(name + ".gone", golden_.tensor(name + ".gone").values, gone);
  }
  /// Hands over the queries of `count` tokens from position `first` on.
  template <class P>
  void hand_over_queries(P& policy, std::size_t first, std::size_t count, float soft_cap = 0.0F) {
    const std::size_t head = len_ * shape_.head_dim;
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      if (!policy.wants_attention(layer))
        continue;
      policy.observe_queries(
          layer,
          {.data = queries_.data() + layer * shape_.num_q_heads * head + first * shape_.head_dim,
           .num_q_heads = shape_.num_q_heads,
           .num_rows = count,
           .head_stride = static_cast<std::ptrdiff_t>(head),
           .row_stride = static_cast<std::ptrdiff_t>(shape_.head_dim),
           .soft_cap = soft_cap},
          cache_.view());
    }
  }
  /// Scores of what is cached, set after set.
  template <class P>
  [[nodiscard]] std::vector<float> scores(const P& policy) {
    const auto view = cache_.view();
    const kvevict::ViewRef ref(view);
    kvevict::Scratch scratch;
    std::vector<float> all;
    for (std::size_t lane = 0; lane < policy.sequence().num_lanes(); ++lane) {
      std::vector<float> scores(policy.sequence().seq_len(lane));
      policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, lane,
                            scores);
      all.insert(all.end(), scores.begin(), scores.end());
    }
    return all;
  }

 private:
  void write(std::size_t first, std::size_t count) {
    for (std::size_t lane = 0; !keys_.empty() && lane < shape_.num_layers * shape_.num_kv_heads;
         ++lane) {
      const auto from =
          keys_.begin() + static_cast<std::ptrdiff_t>((lane * len_ + first) * shape_.head_dim);
      std::copy_n(
          from, count * shape_.head_dim,
          cache_.key(lane / shape_.num_kv_heads, lane % shape_.num_kv_heads, cache_.seq_len(lane)));
    }
    cache_.append(count);
  }
  /// Notes `length` for every token that goes.
  template <class P>
  void cut(P& policy, std::size_t length, std::vector<std::size_t>& gone) {
    if (!policy.should_evict())
      return;
    const kvevict::KeepMask mask = policy.select(cache_.view());
    for (std::size_t i = 0; i < shape_.num_layers * shape_.num_kv_heads; ++i) {
      const std::size_t layer = i / shape_.num_kv_heads;
      const std::size_t head = i % shape_.num_kv_heads;
      const std::size_t lane = shape_.lane_of(policy.sequence().scope(), layer, head);
      for (std::size_t slot = 0; slot < policy.sequence().seq_len(lane); ++slot) {
        const auto position = static_cast<std::size_t>(policy.sequence().position(lane, slot));
        if (!mask.keeps(layer, head, slot))
          gone[i * len_ + position] = length;
      }
    }
    cache_.evict(mask);
    policy.apply(mask);
  }

  const GoldenCase& golden_;
  kvevict::CacheShape shape_;
  std::size_t len_;
  WindowCache cache_;
  std::vector<float> keys_;
  std::vector<float> queries_;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_GROWING_TEXT_HPP_
