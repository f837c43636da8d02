#include "golden/drivers.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/epikv_key_value.hpp"
#include "kvevict/policies/epikv_lag.hpp"
#include "kvevict/temporal/hidden_delta.hpp"
#include "support/epikv_cache.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Cases of `text policy epikv`: every published score of EpiKV, driven as an engine would.
namespace kvevict_test {
namespace {

/// Fills the newest slot's rows of one layer and head.
void set_newest(EpiKVCache& cache, std::size_t layer, std::size_t head, const double* key,
                const double* value, std::size_t head_dim) {
  const auto narrow = [](double x) { return static_cast<float>(x); };
  std::transform(key, key + head_dim, cache.key(layer, head, cache.seq_len() - 1), narrow);
  std::transform(value, value + head_dim, cache.value(layer, head, cache.seq_len() - 1), narrow);
}

/// What one run of a case led to.
struct Trace {
  std::vector<double> scores;   // of each step's token, at its birth
  std::vector<double> evicted;  // position, -1 for none
  std::vector<double> slots;    // its slot before the cut, -1 for none
  std::vector<std::size_t> kept;
};

/// Feeds `steps` tokens, `step_len` at a time, and cuts after every `interval` of them.
///
/// @param feed  feed(first, count, cache): appends `count` tokens from decode token `first` on to
///              the cache and hands over their signals
/// @param look  look(step, cache): before a cut
template <class P, class Feed, class Look>
Trace decode(P& policy, EpiKVCache& cache, std::size_t steps, std::size_t step_len,
             std::size_t interval, Feed&& feed, Look&& look) {
  Trace trace;
  for (std::size_t first = 0; first < steps; first += step_len) {
    const std::size_t count = std::min(step_len, steps - first);
    policy.append(count);
    feed(first, count, cache);
    if constexpr (requires { policy.method().scores(); }) {
      const auto newest = policy.method().scores().last(count);
      trace.scores.insert(trace.scores.end(), newest.begin(), newest.end());
    }
    trace.evicted.push_back(-1);
    trace.slots.push_back(-1);
    if ((first + count) % interval != 0 || !policy.should_evict())
      continue;
    look(first, cache);
    const kvevict::KeepMask& mask = policy.select(cache.view());
    const std::vector<std::size_t> before = cache.positions();
    const std::vector<std::size_t> gone = cache.evict(mask);
    policy.apply(mask);
    if (gone.empty())
      continue;
    trace.evicted.back() = static_cast<double>(gone.front());
    trace.slots.back() =
        static_cast<double>(std::find(before.begin(), before.end(), gone.front()) - before.begin());
    if (gone.size() > 1 && interval == 1 && step_len == 1) {
      throw std::runtime_error("more than one token went in a step");
    }
  }
  trace.kept = cache.positions();
  return trace;
}

/// A run whose scores are frozen at birth: one token a step, then cutting late, then several
/// tokens a step, then the heap.
/// @param start  start(policy, cache): the prompt
template <class P, class Start, class Feed>
void run_frozen(const GoldenCase& golden, GoldenReport& report, const std::string& run,
                const typename P::Options& options, const kvevict::CacheShape& shape, Start&& start,
                Feed&& feed) {
  report.covers(P::kName);
  const std::size_t steps = golden.count("steps");
  const auto trace = [&](std::size_t step_len, std::size_t interval) {
    P policy(options, shape);
    EpiKVCache cache(shape, golden.count("num_prompt") + steps);
    start(policy, cache);
    return decode(
        policy, cache, steps, step_len, interval,
        [&](std::size_t first, std::size_t count, EpiKVCache& here) {
          feed(policy, first, count, here);
        },
        [](std::size_t, const EpiKVCache&) {});
  };
  const Trace each = trace(1, 1);
  report.scores(run + ".scores", golden.tensor(run + ".scores").values, each.scores);
  report.equal(run + ".evicted", golden.tensor(run + ".evicted").values, each.evicted);
  report.equal(run + ".evicted_slot", golden.tensor(run + ".evicted_slot").values, each.slots);
  report.equal(run + ".kept", golden.tensor(run + ".kept").values, each.kept);
  if (steps % 8 == 0) {
    report.equal(run + ".kept, cut every 8 steps", golden.tensor(run + ".kept").values,
                 trace(1, 8).kept);
    const Trace eight = trace(8, 8);
    report.scores(run + ".scores, 8 tokens a step", golden.tensor(run + ".scores").values,
                  eight.scores);
    report.equal(run + ".kept, 8 tokens a step", golden.tensor(run + ".kept").values, eight.kept);
  }
  kvevict::StreamingTopK keep(golden.count("budget"), golden.count("recency"));
  keep.push_prompt(golden.count("num_prompt"));
  std::vector<double> victims;
  for (const double score : each.scores) {
    keep.push(static_cast<float>(score));
    const std::optional<kvevict::Position> gone = keep.pop();
    victims.push_back(gone ? *gone : -1);
  }
  report.equal(run + ".evicted, by the heap", golden.tensor(run + ".evicted").values, victims);
}

/// Hidden vectors of the chosen layers, [layers][steps, dim], and of the last prompt token.
struct Hidden {
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<float>> last_prompt;  // empty where it was not saved
  std::size_t dim = 0;
};

Hidden read_hidden(const GoldenCase& golden) {
  Hidden hidden;
  const bool has_last_prompt = golden.count("has_last_prompt") != 0;
  if (golden.has("hidden.A")) {
    hidden.dim = golden.tensor("hidden.A").shape[1];
    for (const std::string layer : {"A", "B"}) {
      hidden.rows.push_back(golden.tensor("hidden." + layer).floats());
      if (has_last_prompt) {
        hidden.last_prompt.push_back(golden.tensor("last_prompt." + layer).floats());
      }
    }
    return hidden;
  }
  const auto& tensor = golden.tensor("hidden");
  hidden.dim = tensor.shape[2];
  const std::vector<float> all = tensor.floats();
  const auto slice = [&](const std::vector<float>& from, std::size_t layer, std::size_t len) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(layer * len);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(len));
  };
  for (std::size_t layer = 0; layer < tensor.shape[0]; ++layer) {
    hidden.rows.push_back(slice(all, layer, tensor.shape[1] * hidden.dim));
    if (has_last_prompt) {
      hidden.last_prompt.push_back(slice(golden.tensor("last_prompt").floats(), layer, hidden.dim));
    }
  }
  return hidden;
}

template <class P>
void run_hidden(const GoldenCase& golden, GoldenReport& report, const std::string& run) {
  const Hidden hidden = read_hidden(golden);
  const kvevict::CacheShape shape{
      .num_layers = hidden.rows.size(), .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  typename P::Options options;
  options.budget = golden.count("budget");
  options.recent_window = golden.count("recency");
  options.window = golden.count("window");
  const std::size_t num_a = golden.has("num_band_a") ? golden.count("num_band_a") : 1;
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    (layer < num_a ? options.layers_a : options.layers_b).push_back(layer);
  }
  options.weight_a = golden.real_or("weight_a", options.weight_a);
  options.weight_b = golden.real_or("weight_b", options.weight_b);
  const auto rows_from = [&](const float* data, std::size_t count) {
    return kvevict::HiddenRows{data, count, hidden.dim,
                               static_cast<std::ptrdiff_t>(hidden.dim * sizeof(float)),
                               kvevict::ElementType::kF32};
  };
  run_frozen<P>(
      golden, report, run, options, shape,
      [&](P& policy, EpiKVCache& cache) {
        policy.begin(golden.count("num_prompt"));
        cache.append(golden.count("num_prompt"));
        for (std::size_t layer = 0; layer < hidden.last_prompt.size(); ++layer) {
          policy.observe_hidden(layer, rows_from(hidden.last_prompt[layer].data(), 1));
        }
        policy.end_prefill(cache.view());
      },
      [&](P& policy, std::size_t first, std::size_t count, EpiKVCache& cache) {
        cache.append(count);
        for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
          if (!policy.wants_hidden(layer))
            throw std::logic_error("a layer is not wanted");
          policy.observe_hidden(layer,
                                rows_from(hidden.rows[layer].data() + first * hidden.dim, count));
        }
      });
}

void check_deltas(const GoldenCase& golden, GoldenReport& report) {
  const Hidden hidden = read_hidden(golden);
  const std::size_t prompt = golden.count("num_prompt");
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const std::string record = layer == 0 ? "g.A" : "g.B";
    kvevict::HiddenDelta delta(0);
    const auto push = [&](std::size_t position, const float* row) {
      return delta.push(position, row, kvevict::ElementType::kF32, hidden.dim,
                        kvevict::kernels::best());
    };
    if (!hidden.last_prompt.empty())
      push(prompt - 1, hidden.last_prompt[layer].data());
    std::vector<double> actual;
    for (std::size_t t = 0; t < golden.count("steps"); ++t) {
      actual.push_back(push(prompt + t, hidden.rows[layer].data() + t * hidden.dim));
    }
    report.scores(record, golden.tensor(record).values, actual);
  }
}

kvevict::CacheShape cache_shape(const GoldenCase& golden) {
  return {.num_layers = golden.count("num_layers"),
          .num_q_heads = golden.count("num_kv_heads"),
          .num_kv_heads = golden.count("num_kv_heads"),
          .head_dim = golden.count("head_dim")};
}

/// keys, values [steps, layers, num_kv_heads, head_dim].
template <class P>
void run_key_value(const GoldenCase& golden, GoldenReport& report, const std::string& run) {
  const kvevict::CacheShape shape = cache_shape(golden);
  typename P::Options options;
  options.budget = golden.count("budget");
  options.recent_window = golden.count("recency");
  options.window = golden.count("window");
  const auto& keys = golden.tensor("keys").values;
  const auto& values = golden.tensor("values").values;
  run_frozen<P>(
      golden, report, run, options, shape,
      [&](P& policy, EpiKVCache& cache) {
        policy.begin(golden.count("num_prompt"));
        cache.append(golden.count("num_prompt"));
        policy.end_prefill(cache.view());
      },
      [&](P& policy, std::size_t first, std::size_t count, EpiKVCache& cache) {
        for (std::size_t t = first; t < first + count; ++t) {
          cache.append(1);
          for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
            for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
              const std::size_t row =
                  ((t * shape.num_layers + layer) * shape.num_kv_heads + head) * shape.head_dim;
              set_newest(cache, layer, head, keys.data() + row, values.data() + row,
                         shape.head_dim);
            }
          }
        }
        policy.observe_cache(cache.view());
      });
}

/// keys, values [layers, num_kv_heads, positions, head_dim]; recomputed at every cut.
template <class P>
void run_lag(const GoldenCase& golden, GoldenReport& report, const std::string& run) {
  const kvevict::CacheShape shape = cache_shape(golden);
  const std::size_t steps = golden.count("steps");
  typename P::Options options;
  options.budget = golden.count("budget");
  options.recent_window = golden.count("recency");
  options.chunk_len = golden.count("chunk");
  const auto& keys = golden.tensor("keys");
  const auto& values = golden.tensor("values");
  const std::size_t num_positions = keys.shape[2];
  P policy(options, shape);
  report.covers(P::kName);
  EpiKVCache cache(shape, num_positions);
  std::size_t position = 0;
  const auto append = [&] {
    cache.append(1);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        const std::size_t row =
            ((layer * shape.num_kv_heads + head) * num_positions + position) * shape.head_dim;
        set_newest(cache, layer, head, keys.values.data() + row, values.values.data() + row,
                   shape.head_dim);
      }
    }
    ++position;
  };
  policy.begin(golden.count("num_prompt"));
  while (position < golden.count("num_prompt"))
    append();
  policy.end_prefill(cache.view());
  std::size_t num_events = 0;
  const auto event = [&](std::size_t i) { return run + ".event." + std::to_string(i); };
  const Trace trace = decode(
      policy, cache, steps, 1, 1, [&](std::size_t, std::size_t, EpiKVCache&) { append(); },
      [&](std::size_t step, EpiKVCache& here) {
        const std::string name = event(num_events);
        if (!golden.has(name + ".step") || golden.count(name + ".step") != step)
          return;
        ++num_events;
        const auto view = here.view();
        const kvevict::ViewRef ref(view);
        kvevict::Scratch scratch;
        std::vector<float> scores(here.positions().size());
        policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, 0,
                              scores);
        report.equal(name + ".positions", golden.tensor(name + ".positions").values,
                     here.positions());
        report.scores(name + ".scores", golden.tensor(name + ".scores").values, scores);
      });
  report.is_true(run + ": not every event came", !golden.has(event(num_events) + ".step"));
  report.equal(run + ".evicted", golden.tensor(run + ".evicted").values, trace.evicted);
  report.equal(run + ".evicted_slot", golden.tensor(run + ".evicted_slot").values, trace.slots);
  report.equal(run + ".kept", golden.tensor(run + ".kept").values, trace.kept);
}

}  // namespace

void run_epikv(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& run : golden.words("runs")) {
    if (run == "z") {
      run_hidden<kvevict::EpiKV>(golden, report, run);
    } else if (run == "raw") {
      run_hidden<kvevict::EpiKVRaw>(golden, report, run);
    } else if (run == "band") {
      run_hidden<kvevict::EpiKVBands>(golden, report, run);
    } else if (run == "kv_key") {
      run_key_value<kvevict::EpiKVKey>(golden, report, run);
    } else if (run == "kv_value") {
      run_key_value<kvevict::EpiKVValue>(golden, report, run);
    } else if (run == "lag_kv") {
      run_lag<kvevict::EpiKVLag>(golden, report, run);
    } else if (run == "lag_key") {
      run_lag<kvevict::EpiKVLagKey>(golden, report, run);
    } else {
      throw std::runtime_error(golden.path() + ": unknown run " + run);
    }
  }
  if (golden.has("g.A"))
    check_deltas(golden, report);
}

}  // namespace kvevict_test
