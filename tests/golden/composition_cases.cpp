#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/rerotated_keys.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "kvevict/views/merge_values.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// Cases of kvpress' wrappers that an engine has by the order of its calls: chunks that are cut one
// by one, a prompt that is cut while it comes, keys that are turned to new positions, values that
// are folded into others.
namespace kvevict_test {
namespace {

using kvevict::views::ContiguousView;
using kvevict::views::Tensor;

/// Calls run(type) with the policy that the case names.
template <class Run>
void with_base(const GoldenCase& golden, Run&& run) {
  if (golden.text("base") == "knorm") {
    run(std::type_identity<kvevict::Knorm>());
  } else if (golden.text("base") == "keydiff") {
    run(std::type_identity<kvevict::KeyDiff>());
  } else {
    throw std::runtime_error("no base " + golden.text("base"));
  }
}

Tensor tensor(std::vector<float>& keys, const kvevict::CacheShape& shape, std::size_t capacity) {
  return Tensor::hnd(keys.data(), kvevict::ElementType::kF32, capacity, shape.num_kv_heads,
                     shape.head_dim);
}

/// A prompt in blocks, cut to `budget` after each: the positions that stay, by KV head.
template <class P>
std::vector<std::vector<std::size_t>> keep_block_by_block(const WindowPrompt& prompt,
                                                          std::size_t budget, std::size_t block) {
  const std::size_t dim = prompt.shape.head_dim;
  const std::size_t num_heads = prompt.shape.num_kv_heads;
  P policy({.budget = budget}, prompt.shape);
  std::vector<float> cache(num_heads * prompt.len * dim);
  policy.begin(prompt.len);
  std::size_t len = 0;
  for (std::size_t fed = 0; fed < prompt.len;) {
    const std::size_t count = std::min(fed == 0 ? budget : block, prompt.len - fed);
    for (std::size_t head = 0; head < num_heads; ++head) {
      std::copy_n(prompt.keys.data() + (head * prompt.len + fed) * dim, count * dim,
                  cache.data() + (head * prompt.len + len) * dim);
    }
    policy.append(count);
    fed += count;
    len += count;
    const ContiguousView view(prompt.shape, tensor(cache, prompt.shape, prompt.len), {}, len);
    if (!policy.should_evict())
      continue;
    const kvevict::KeepMask& mask = policy.select(view);
    kvevict::compact(view, mask);
    len = mask.count(0, 0);
    policy.apply(mask);
  }
  std::vector<std::vector<std::size_t>> kept(num_heads);
  for (std::size_t head = 0; head < num_heads; ++head) {
    for (std::size_t slot = 0; slot < len; ++slot)
      kept[head].push_back(static_cast<std::size_t>(policy.sequence().position(head, slot)));
  }
  return kept;
}

}  // namespace

void run_block(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  with_base(golden, [&]<class P>(std::type_identity<P>) {
    for (const std::string& ratio : ratios_of(golden)) {
      std::vector<int> keep(prompt.shape.num_kv_heads * prompt.len, 0);
      const auto kept = keep_block_by_block<P>(prompt, golden.count("n_kept." + ratio),
                                               golden.count("block_size"));
      for (std::size_t head = 0; head < kept.size(); ++head) {
        for (const std::size_t position : kept[head])
          keep[head * prompt.len + position] = 1;
      }
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
    }
  });
}

void run_chunk(const GoldenCase& golden, GoldenReport& report) {
  WindowPrompt prompt(golden, std::size_t{0});
  const kvevict::CacheShape& shape = prompt.shape;
  with_base(golden, [&]<class P>(std::type_identity<P>) {
    for (const std::string& ratio : ratios_of(golden)) {
      std::vector<int> keep(shape.num_kv_heads * prompt.len, 0);
      std::vector<float> scores(keep.size());
      for (std::size_t first = 0; first < prompt.len; first += golden.count("chunk_length")) {
        // A chunk is a cache of its own.
        const std::size_t len = std::min(golden.count("chunk_length"), prompt.len - first);
        Tensor keys = tensor(prompt.keys, shape, prompt.len);
        keys.data += static_cast<std::ptrdiff_t>(first) * keys.slot_stride_bytes;
        const ContiguousView view(shape, keys, {}, len);
        P policy({.budget = kvevict::Budget::compression_ratio(golden.real("ratio." + ratio)),
                  .only_at_prefill_end = true},
                 shape);
        policy.begin(len);
        policy.end_prefill(view);
        const kvevict::KeepMask& mask = policy.select(view);
        const kvevict::ViewRef ref(view);
        kvevict::Scratch scratch;
        for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
          const std::size_t start = head * prompt.len + first;
          policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, head,
                                std::span(scores).subspan(start, len));
          for (std::size_t slot = 0; slot < len; ++slot)
            keep[start + slot] = mask.keeps(0, head, slot) ? 1 : 0;
        }
      }
      report.scores("scores", golden.tensor("scores").values, scores);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
    }
  });
}

void run_key_rerotation(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  const auto compare = [&](const std::string& ratio, auto policy) {
    prompt.feed(policy, {"cache alone", false, 0});
    report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
    compare_rerotated(golden, report, ratio, prompt, policy.sequence(),
                      policy.select(prompt.view(prompt.len)));
  };
  for (const std::string& ratio : ratios_of(golden)) {
    const std::size_t budget = golden.count("n_kept." + ratio);
    if (golden.text("base") == "streaming") {
      const std::size_t sinks = golden.count("n_sink");
      compare(ratio,
              kvevict::StreamingLLM({.num_sink_tokens = sinks, .recent_window = budget - sinks},
                                    prompt.shape));
      continue;
    }
    with_base(golden, [&]<class P>(std::type_identity<P>) {
      compare(ratio, P({.budget = budget}, prompt.shape));
    });
  }
}

void run_merging(const GoldenCase& golden, GoldenReport& report) {
  with_base(golden, [&]<class P>(std::type_identity<P>) {
    for (const std::string& ratio : ratios_of(golden)) {
      const WindowPrompt prompt(golden, std::size_t{0});  // its values change
      P policy({.budget = golden.count("n_kept." + ratio), .only_at_prefill_end = true},
               prompt.shape);
      prompt.feed(policy, {"cache alone", false, 0});
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
      const ContiguousView view = prompt.view(prompt.len);
      const kvevict::KeepMask& mask = policy.select(view);
      kvevict::ValueMerge merge(
          {.similarity_threshold = static_cast<float>(golden.real("similarity_threshold")),
           .merge_fraction = golden.real("merge_fraction")});
      merge.run(view, mask);
      kvevict::compact(view, mask);
      std::vector<float> merged;
      const std::size_t dim = prompt.shape.head_dim;
      for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
        const auto first =
            prompt.values.begin() + static_cast<std::ptrdiff_t>(head * prompt.len * dim);
        merged.insert(merged.end(), first,
                      first + static_cast<std::ptrdiff_t>(mask.count(0, head) * dim));
      }
      const std::string record = "values_merged." + ratio;
      report.scores(record, golden.tensor(record).values, merged);
    }
  });
}

}  // namespace kvevict_test
