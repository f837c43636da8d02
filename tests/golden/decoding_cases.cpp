#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/policies/dms.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"
#include "support/window_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// Cases of `text policy decoding` and `dms`: caches that are cut while tokens are decoded.
namespace kvevict_test {
namespace {

/// A cache that takes the case's tokens one after another.
class Decoder {
 public:
  explicit Decoder(const GoldenCase& golden)
      : prompt_(golden, std::size_t{0}), cache_(prompt_.shape, prompt_.len) {}

  [[nodiscard]] const kvevict::CacheShape& shape() const { return prompt_.shape; }
  [[nodiscard]] std::size_t num_tokens() const { return prompt_.len; }
  [[nodiscard]] WindowCache& cache() { return cache_; }

  void write(std::size_t count) {
    const std::size_t dim = shape().head_dim;
    for (std::size_t head = 0; head < shape().num_kv_heads; ++head) {
      std::copy_n(prompt_.keys.data() + (head * prompt_.len + length_) * dim, count * dim,
                  cache_.key(0, head, cache_.seq_len(head)));
    }
    cache_.append(count);
    length_ += count;
  }

 private:
  WindowPrompt prompt_;
  WindowCache cache_;
  std::size_t length_ = 0;
};

/// Positions in the cache, [KV heads, size].
std::vector<std::size_t> positions_of(const kvevict::Sequence& sequence) {
  std::vector<std::size_t> positions;
  for (std::size_t lane = 0; lane < sequence.num_lanes(); ++lane) {
    for (std::size_t slot = 0; slot < sequence.seq_len(lane); ++slot)
      positions.push_back(static_cast<std::size_t>(sequence.position(lane, slot)));
  }
  return positions;
}

/// Calls run(type) with the policy of the keys that the record names.
template <class Run>
void with_policy(const GoldenCase& golden, const std::string& record, Run&& run) {
  if (golden.text(record) == "knorm") {
    run(std::type_identity<kvevict::Knorm>());
  } else if (golden.text(record) == "keydiff") {
    run(std::type_identity<kvevict::KeyDiff>());
  } else {
    throw std::runtime_error("no " + record + " " + golden.text(record));
  }
}

/// One policy cuts the prompt, if there is one for it, and another one what is decoded. Both see
/// every mask.
template <class Prefill, class Decode>
void run_both(const GoldenCase& golden, GoldenReport& report, double prefill_ratio) {
  Decoder decoder(golden);
  WindowCache& cache = decoder.cache();
  const std::size_t interval = golden.count("compression_interval");
  const auto budget =
      golden.has("target_size")
          ? kvevict::Budget::tokens(golden.count("target_size"))
          : kvevict::Budget::compression_ratio(golden.real("target_compression_ratio"));
  Prefill prefill(
      {.budget = kvevict::Budget::compression_ratio(prefill_ratio), .only_at_prefill_end = true},
      decoder.shape());
  Decode decode(
      {.budget = budget, .schedule = {.cuts_prompts = false, .decode_interval = interval}},
      decoder.shape());
  std::size_t event = 0;
  const auto compare = [&](std::size_t step) {
    const std::string number = "." + std::to_string(event++);
    report.equal("step" + number, {golden.real("step" + number)}, std::vector<std::size_t>{step});
    report.equal("size" + number, {golden.real("size" + number)},
                 std::vector<std::size_t>{cache.seq_len()});
    report.equal("kept" + number, golden.tensor("kept" + number).values,
                 positions_of(decode.sequence()));
  };
  const auto cut = [&](const auto& policy) {
    if (!policy.should_evict())
      return;
    const kvevict::KeepMask mask = policy.select(cache.view());
    cache.evict(mask);
    prefill.apply(mask);
    decode.apply(mask);
  };
  const std::size_t len = golden.count("n_prefill");
  prefill.begin(len);
  decode.begin(len);
  decoder.write(len);
  prefill.end_prefill(cache.view());
  decode.end_prefill(cache.view());
  cut(prefill);
  cut(decode);  // does nothing: prompts are not its own
  compare(len);
  for (std::size_t step = len + 1; step <= decoder.num_tokens(); ++step) {
    prefill.append(1);
    decode.append(1);
    decoder.write(1);
    cut(prefill);  // does nothing
    cut(decode);
    if ((step - len) % interval == 0)
      compare(step);
  }
  report.is_true("num_events", event == golden.count("num_events"));
}

}  // namespace

void run_decoding(const GoldenCase& golden, GoldenReport& report) {
  with_policy(golden, "base", [&]<class Decode>(std::type_identity<Decode>) {
    if (!golden.has("prefill_base"))
      return run_both<kvevict::Knorm, Decode>(golden, report, 0.0);
    with_policy(golden, "prefill_base", [&]<class Prefill>(std::type_identity<Prefill>) {
      run_both<Prefill, Decode>(golden, report, golden.real("prefill_ratio"));
    });
  });
}

void run_dms(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::DMSKnorm::kName);
  if (golden.has("base") && golden.text("base") != "knorm")
    throw std::runtime_error("no base " + golden.text("base"));
  const bool whole_run = golden.has("decoding") && golden.count("decoding") != 0;
  kvevict::DMSKnorm::Options options;
  options.recent_window = golden.count("sliding_window_size");
  options.threshold = static_cast<float>(golden.real("threshold"));
  options.only_at_prefill_end = !whole_run;
  const std::size_t len = golden.count("n_prefill");
  // A prompt that comes in pieces, cut in between or not, ends the same.
  for (const std::size_t chunk : {len, std::size_t{9}}) {
    Decoder decoder(golden);
    WindowCache& cache = decoder.cache();
    kvevict::DMSKnorm policy(options, decoder.shape());
    const auto compare = [&](const std::string& record, std::size_t length) {
      if (!golden.has(record))
        return;
      std::vector<int> keep(decoder.shape().num_kv_heads * length);
      for (std::size_t head = 0; head < decoder.shape().num_kv_heads; ++head) {
        for (std::size_t slot = 0; slot < policy.sequence().seq_len(head); ++slot) {
          keep[head * length + static_cast<std::size_t>(policy.sequence().position(head, slot))] =
              1;
        }
      }
      report.equal(record, golden.tensor(record).values, keep);
    };
    const auto cut = [&] {
      if (!policy.should_evict())
        return;
      const kvevict::KeepMask mask = policy.select(cache.view());
      report.is_true("nothing goes though should_evict said so", mask.total_evicted() > 0);
      cache.evict(mask);
      policy.apply(mask);
    };
    policy.begin(len);
    for (std::size_t done = 0; done < len;) {
      const std::size_t count = std::min(chunk, len - done);
      policy.append(count);
      decoder.write(count);
      policy.observe_cache(cache.view());
      done += count;
      if (done < len)
        cut();
    }
    policy.end_prefill(cache.view());
    cut();
    compare("keep.a", len);
    for (std::size_t step = len; step < decoder.num_tokens(); ++step) {
      policy.append(1);
      decoder.write(1);
      policy.observe_cache(cache.view());
      cut();
    }
    compare("keep.b", decoder.num_tokens());
  }
}

}  // namespace kvevict_test
