#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_TOGETHER_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_TOGETHER_HPP_

#include "llama_cpp/runtime.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace llama_example {

/// A policy, and what it is to pin of the prompt.
struct Follower {
  AnyPolicy policy;
  std::vector<kvevict::PositionSpan> pinned = {};
};

/// Many policies that follow one prompt as if each had read it alone, and evict nothing: a prompt
/// is read once for all, and each goes on from the saved cache (Session::load_prompt). A policy as
/// far as a session asks for one.
class Together {
 public:
  explicit Together(std::vector<Follower> followers) : followers_(std::move(followers)) {}

  [[nodiscard]] const AnyPolicy& operator[](std::size_t i) const { return followers_[i].policy; }

  [[nodiscard]] kvevict::Inputs required_inputs() const {
    auto inputs = kvevict::Inputs::kNothing;
    for (const Follower& follower : followers_)
      inputs = inputs | follower.policy.required_inputs();
    return inputs;
  }
  void begin(std::size_t prompt_len, std::span<const kvevict::PositionSpan> /*pinned*/) {
    for (Follower& follower : followers_)
      follower.policy.begin(prompt_len, follower.pinned);
  }
  void append(std::size_t count) {
    each([&](AnyPolicy& policy) { policy.append(count); });
  }
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const {
    std::size_t rows = 0;
    for (const Follower& follower : followers_)
      rows = std::max(rows, follower.policy.wanted_attention_rows(layer));
    return rows;
  }
  [[nodiscard]] bool wants_hidden(std::size_t layer) const {
    return std::any_of(followers_.begin(), followers_.end(),
                       [&](const Follower& f) { return f.policy.wants_hidden(layer); });
  }
  [[nodiscard]] bool wants_cache() const {
    return std::any_of(followers_.begin(), followers_.end(),
                       [](const Follower& f) { return f.policy.wants_cache(); });
  }
  template <class View>
  void observe_queries(std::size_t layer, const kvevict::QueryRows& queries, const View& view) {
    each([&](AnyPolicy& policy) {
      if (policy.wants_attention(layer))
        policy.observe_queries(layer, queries, view);
    });
  }
  void observe_hidden(std::size_t layer, const kvevict::HiddenRows& rows) {
    each([&](AnyPolicy& policy) {
      if (policy.wants_hidden(layer))
        policy.observe_hidden(layer, rows);
    });
  }
  template <class View>
  void observe_cache(const View& view) {
    each([&](AnyPolicy& policy) {
      if (policy.wants_cache())
        policy.observe_cache(view);
    });
  }
  template <class View>
  void end_prefill(const View& view) {
    each([&](AnyPolicy& policy) { policy.end_prefill(view); });
  }
  [[nodiscard]] static bool should_evict() noexcept { return false; }
  template <class View>
  [[nodiscard]] const kvevict::KeepMask& select(const View& view,
                                                kvevict::Projection& projection) const {
    return followers_.front().policy.select(view, projection);
  }
  void apply(const kvevict::KeepMask& mask) {
    each([&](AnyPolicy& policy) { policy.apply(mask); });
  }
  void truncate(std::size_t length) {
    each([&](AnyPolicy& policy) { policy.truncate(length); });
  }
  void reset() {
    each([](AnyPolicy& policy) { policy.reset(); });
  }
  [[nodiscard]] std::size_t length() const { return followers_.front().policy.length(); }
  [[nodiscard]] const kvevict::Sequence& sequence() const {
    return followers_.front().policy.sequence();
  }

 private:
  template <class Visit>
  void each(Visit&& visit) {
    for (Follower& follower : followers_)
      visit(follower.policy);
  }

  std::vector<Follower> followers_;
};

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_TOGETHER_HPP_
