// Policies that have to agree where one contains the other, and what a policy must not depend on
// (rotations, scales, the order of heads, other heads, a larger budget).
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/cake.hpp"
#include "kvevict/policies/caote.hpp"
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/compactor.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "kvevict/selection/projection.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::KeepMask;

constexpr CacheShape kShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 6};

/// Positions of every lane after a prompt and some steps.
template <class P>
auto run(const typename P::Options& options, const CacheShape& shape = kShape) {
  TestEngine<P> engine(P(options, shape), layouts::nhd(shape, 100, kvevict::ElementType::kF32));
  engine.prompt(40, 7);
  engine.evict_if_due();
  engine.decode(20);
  return engine.all_positions();
}

// ----------------------------------------------------------------------------------- reductions

TEST(Identities, H2OOfSinksAndRecentTokensAloneIsStreamingLLM) {
  EXPECT_EQ(run<kvevict::H2O>({.heavy = 3, .recent = 9, .num_sink_tokens = 3}),
            run<kvevict::StreamingLLM>({.num_sink_tokens = 3, .recent_window = 9}));
  // Without sinks it is a sliding window.
  EXPECT_EQ(run<kvevict::H2O>({.heavy = 0, .recent = 9}),
            run<kvevict::StreamingLLM>({.num_sink_tokens = 0, .recent_window = 9}));
}

struct ImportanceRecipe : kvevict::RKVRecipe {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return kvevict::PeakLogitAttention(kName, shape, options.observation_window) |
           kvevict::Pool{options.pooling};
  }
};

TEST(Identities, RKVWithoutRedundancyIsTheImportanceOfItsWindow) {
  kvevict::RKVOptions options{.budget = 16, .buffer = 4, .observation_window = 4, .lambda = 1.0};
  const auto importance = run<kvevict::Policy<kvevict::Composed<ImportanceRecipe>>>(options);
  EXPECT_EQ(run<kvevict::RKV>(options), importance);
  options.lambda = 0.1;
  EXPECT_NE(run<kvevict::RKV>(options), importance);
}

// One layer and one head compete with nobody: uniform, by layer and over the model are the same.
TEST(Identities, ScoresOfOneLaneAreTakenAlikeHoweverLanesCompete) {
  constexpr CacheShape kOne{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  Random random(3);
  std::vector<float> scores(50);
  for (float& x : scores)
    x = random.eighths();
  std::vector<std::vector<std::size_t>> kept;
  for (const auto competition :
       {kvevict::Competition::kLane, kvevict::Competition::kLayer, kvevict::Competition::kModel}) {
    kvevict::ExternalScores policy({.budget = 20, .competition = competition}, kOne);
    WindowCache cache(kOne, 50);
    cache.append(50);
    policy.begin(50);
    policy.append(50);
    policy.observe_scores(0, 0, scores);
    policy.end_prefill(cache.view());
    const KeepMask& mask = policy.select(cache.view());
    kept.emplace_back();
    for (std::size_t slot = 0; slot < 50; ++slot) {
      if (mask.keeps(0, 0, slot))
        kept.back().push_back(slot);
    }
  }
  // By hand: the best twenty, of equal ones the first.
  std::vector<std::size_t> order(50);
  for (std::size_t i = 0; i < 50; ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(20);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(kept[0], order);
  EXPECT_EQ(kept[1], order);
  EXPECT_EQ(kept[2], order);
}

// KVzip lets all layers and heads compete at the end of a prompt; one lane is a plain top-k.
TEST(Identities, KVzipOfOneLaneIsTopK) {
  constexpr CacheShape kOne{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  Random random(4);
  std::vector<float> scores(70);
  for (float& x : scores)
    x = random.eighths();
  Slots order = range(0, scores.size());
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  for (std::size_t budget = 1; budget < scores.size(); budget += 7) {
    kvevict::KVzip policy({.budget = budget, .num_sink_tokens = 0}, kOne);
    WindowCache cache(kOne, scores.size());
    cache.append(scores.size());
    policy.begin(scores.size());
    policy.append(scores.size());
    policy.end_prefill(cache.view());
    policy.observe_scores(0, 0, scores);
    Slots expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(budget));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(kept_slots(policy.select(cache.view())), expected) << budget;
  }
}

// ---------------------------------------------------------------------------------- invariances

/// A cache whose keys and values may be changed, and what a policy of it alone keeps.
template <class P>
KeepMask keep(const typename P::Options& options, WindowCache& cache) {
  const std::size_t len = cache.seq_len();
  P policy(options, kShape);
  policy.begin(len);
  policy.append(len);
  policy.end_prefill(cache.view());
  return policy.select(cache.view());
}
WindowCache random_cache(std::uint64_t seed) {
  Random random(seed);
  WindowCache cache(kShape, 64);
  cache.fill(random);
  cache.append(64);
  return cache;
}
using Change = std::function<void(float* row, std::size_t slot)>;
void change_keys(WindowCache& cache, const Change& change) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t slot = 0; slot < 64; ++slot)
        change(cache.key(layer, head, slot), slot);
    }
  }
}
// Orthogonal and exact: channels change places, one its sign.
void turn(float* row, std::size_t /*slot*/) {
  std::rotate(row, row + 2, row + 6);
  row[3] = -row[3];
}

TEST(Invariances, ARotationOfAllKeysChangesNoLengthAndNoAngle) {
  WindowCache cache = random_cache(1);
  const KeepMask by_norm = keep<kvevict::Knorm>({.budget = 20}, cache);
  const KeepMask by_angle = keep<kvevict::KeyDiff>({.budget = 20}, cache);
  change_keys(cache, turn);
  EXPECT_EQ(keep<kvevict::Knorm>({.budget = 20}, cache), by_norm);
  EXPECT_EQ(keep<kvevict::KeyDiff>({.budget = 20}, cache), by_angle);
  change_keys(cache, [](float* row, std::size_t slot) { row[slot % 6] += 3.0F; });
  EXPECT_NE(keep<kvevict::Knorm>({.budget = 20}, cache), by_norm);
  EXPECT_NE(keep<kvevict::KeyDiff>({.budget = 20}, cache), by_angle);
}

// By powers of two, which are exact: an angle does not know how long its sides are.
TEST(Invariances, KeyDiffDoesNotSeeTheLengthOfAKey) {
  WindowCache cache = random_cache(2);
  const KeepMask before = keep<kvevict::KeyDiff>({.budget = 20}, cache);
  change_keys(cache, [](float* row, std::size_t slot) {
    for (std::size_t c = 0; c < 6; ++c)
      row[c] = std::ldexp(row[c], static_cast<int>(slot % 5) - 2);
  });
  EXPECT_EQ(keep<kvevict::KeyDiff>({.budget = 20}, cache), before);
}

// Each channel has a scale and an origin of its own; numbers are such that all of it is exact.
TEST(Invariances, LagKVDoesNotSeeTheUnitsOfAChannel) {
  const kvevict::LagKVBudgetOptions options{.budget = 30, .num_sink_tokens = 2, .lag_len = 8};
  WindowCache cache = random_cache(3);
  const KeepMask before = keep<kvevict::LagKVBudget>(options, cache);
  const KeepMask plain = keep<kvevict::LagKV>({.num_sink_tokens = 2, .lag_len = 8}, cache);
  change_keys(cache, [](float* row, std::size_t /*slot*/) {
    for (std::size_t c = 0; c < 6; ++c)
      row[c] = std::ldexp(row[c], static_cast<int>(c)) + static_cast<float>(c);
  });
  EXPECT_EQ(keep<kvevict::LagKVBudget>(options, cache), before);
  // Values have units of their own.
  for (std::size_t lane = 0; lane < 4; ++lane) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      for (std::size_t c = 0; c < 6; ++c) {
        float& x = cache.value(lane / 2, lane % 2, slot)[c];
        x = std::ldexp(x, -static_cast<int>(c)) - 2.0F;
      }
    }
  }
  EXPECT_EQ(keep<kvevict::LagKVBudget>(options, cache), before);
  EXPECT_EQ(keep<kvevict::LagKV>({.num_sink_tokens = 2, .lag_len = 8}, cache), plain);
}

/// Window queries [heads, rows, head_dim] handed to a policy of attention.
template <class P>
KeepMask keep_by_attention(const typename P::Options& options, WindowCache& cache,
                           const std::vector<float>& queries, std::size_t rows) {
  const std::size_t len = cache.seq_len();
  P policy(options, kShape);
  policy.begin(len);
  policy.append(len - rows);
  policy.append(rows);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    policy.observe_queries(layer,
                           {.data = queries.data(),
                            .num_q_heads = 4,
                            .num_rows = rows,
                            .head_stride = static_cast<std::ptrdiff_t>(rows * 6),
                            .row_stride = 6},
                           cache.view());
  }
  policy.end_prefill(cache.view());
  return policy.select(cache.view());
}
std::vector<float> random_queries(std::size_t rows) {
  Random random(9);
  std::vector<float> queries(4 * rows * 6);
  for (float& x : queries)
    x = random.eighths();
  return queries;
}
/// The other order of KV heads, with their query heads.
void swap_heads(WindowCache& cache, std::vector<float>& queries) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      std::swap_ranges(cache.key(layer, 0, slot), cache.key(layer, 0, slot) + 6,
                       cache.key(layer, 1, slot));
      std::swap_ranges(cache.value(layer, 0, slot), cache.value(layer, 0, slot) + 6,
                       cache.value(layer, 1, slot));
    }
  }
  const auto half = static_cast<std::ptrdiff_t>(queries.size() / 2);
  std::swap_ranges(queries.begin(), queries.begin() + half, queries.begin() + half);
}
bool same_lane(const KeepMask& a, std::size_t head_of_a, const KeepMask& b, std::size_t head_of_b) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      if (a.keeps(layer, head_of_a, slot) != b.keeps(layer, head_of_b, slot))
        return false;
    }
  }
  return true;
}

TEST(Invariances, HeadsInAnotherOrderKeepWhatTheyKept) {
  const kvevict::SnapKVOptions options{.budget = 20, .observation_window = 4};
  WindowCache cache = random_cache(4);
  std::vector<float> queries = random_queries(4);
  const KeepMask before = keep_by_attention<kvevict::SnapKV>(options, cache, queries, 4);
  const kvevict::TOVAOptions tova{.budget = 20, .scope = kvevict::MaskScope::kHead};
  const KeepMask tova_before = keep_by_attention<kvevict::TOVA>(tova, cache, queries, 4);
  swap_heads(cache, queries);
  const KeepMask after = keep_by_attention<kvevict::SnapKV>(options, cache, queries, 4);
  const KeepMask tova_after = keep_by_attention<kvevict::TOVA>(tova, cache, queries, 4);
  for (const std::size_t head : {0U, 1U}) {
    EXPECT_TRUE(same_lane(before, head, after, 1 - head));
    EXPECT_TRUE(same_lane(tova_before, head, tova_after, 1 - head));
  }
  EXPECT_FALSE(same_lane(before, 0, after, 0));
}

// A head that shares no budget with another does not see what the other holds.
TEST(Invariances, AHeadDoesNotSeeAnother) {
  WindowCache cache = random_cache(5);
  const std::vector<float> queries = random_queries(4);
  const kvevict::SnapKVOptions snapkv{.budget = 20, .observation_window = 4};
  const kvevict::LagKVBudgetOptions lag{.budget = 30, .num_sink_tokens = 2, .lag_len = 8};
  const auto masks = [&] {
    std::vector<KeepMask> all;
    all.push_back(keep<kvevict::Knorm>({.budget = 20}, cache));
    all.push_back(keep<kvevict::KeyDiff>({.budget = 20}, cache));
    all.push_back(keep<kvevict::CurDKV>({.budget = 20}, cache));
    all.push_back(keep<kvevict::LagKVBudget>(lag, cache));
    all.push_back(keep_by_attention<kvevict::SnapKV>(snapkv, cache, queries, 4));
    return all;
  };
  const std::vector<KeepMask> before = masks();
  Random random(77);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      for (std::size_t c = 0; c < 6; ++c) {
        cache.key(layer, 1, slot)[c] = random.eighths();
        cache.value(layer, 1, slot)[c] = random.eighths();
      }
    }
  }
  const std::vector<KeepMask> after = masks();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_lane(before[i], 0, after[i], 0)) << i;
    EXPECT_FALSE(same_lane(before[i], 1, after[i], 1)) << i;
  }
}

/// Four channels: the L1 norm that values are given below makes all products exact.
constexpr CacheShape kFour{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};

/// A prompt of random keys and then single steps, the same for every policy that is given it.
template <class P>
struct Replay {
  P policy;
  WindowCache cache{kFour, 100};
  Random random{8};

  explicit Replay(const typename P::Options& options) : policy(options, kFour) {
    cache.fill(random);
  }
  void show(std::size_t rows) {
    const WindowQueries queries(kFour, 32, random);
    for (std::size_t layer = 0; layer < kFour.num_layers; ++layer) {
      const std::size_t wanted = policy.wanted_attention_rows(layer);
      if (wanted > 0)  // the newest of `rows`
        policy.observe_queries(layer, queries.rows(layer, rows - wanted, wanted), cache.view());
    }
  }
  void prompt(std::size_t count) {
    policy.begin(count);
    policy.append(count);
    cache.append(count);
    show(count);
    policy.end_prefill(cache.view());
  }
  void step() {
    policy.append(1);
    cache.append(1);
    show(1);
  }
};

struct SharedVoteRecipe : kvevict::SnapKVRecipe {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return kvevict::SnapKVRecipe::pipeline(options, shape) |
           kvevict::HeadReduction{kvevict::GroupReduce::kMean};
  }
  static kvevict::MaskScope scope(const Options& /*options*/) { return kvevict::MaskScope::kLayer; }
};

// One row that votes, no pooling, the mean over all heads and one set for a layer: TOVA whose
// newest token stays. Once as a composition, whose scores are the same bits, once as SnapKV that is
// projected to what an engine with one set per layer can hold.
TEST(Identities, SnapKVOfOneRowSharedByHeadsIsTOVA) {
  const kvevict::SnapKVOptions options{
      .budget = 7, .observation_window = 1, .pooling = {.kernel_size = 1}};
  Replay<kvevict::TOVA> tova({.budget = 7, .protect_newest = true});
  Replay<kvevict::Policy<kvevict::Composed<SharedVoteRecipe>>> vote(options);
  Replay<kvevict::SnapKV> snapkv(options);
  tova.prompt(32);
  vote.prompt(32);
  snapkv.prompt(32);
  for (std::size_t layer = 0; layer < kFour.num_layers; ++layer) {
    std::vector<float> expected = scores_of(tova.policy, tova.cache, layer);
    std::vector<float> actual = scores_of(vote.policy, vote.cache, layer);
    expected.pop_back();  // the window itself has no votes
    actual.pop_back();
    EXPECT_EQ(actual, expected);
  }
  const KeepMask& mask = tova.policy.select(tova.cache.view());
  EXPECT_EQ(mask.total_count(), 4 * 7U);
  EXPECT_EQ(vote.policy.select(vote.cache.view()), mask);
  kvevict::Projection projection({.scope = kvevict::MaskScope::kLayer}, kFour);
  EXPECT_EQ(snapkv.policy.select(snapkv.cache.view(), projection), mask);
  EXPECT_NE(kept_slots(mask, 0), kept_slots(mask, 1));
}

// A whole prompt that votes and competes is H2O's sum over all rows.
TEST(Identities, SnapKVWhoseWindowIsThePromptIsH2O) {
  Replay<kvevict::SnapKV> snapkv({.budget = 9,
                                  .observation_window = 32,
                                  .pooling = {.kernel_size = 1},
                                  .protect_window = false});
  Replay<kvevict::H2O> h2o({.heavy = 9, .recent = 0});
  snapkv.prompt(32);
  h2o.prompt(32);
  for (std::size_t lane = 0; lane < 4; ++lane)
    EXPECT_EQ(scores_of(snapkv.policy, snapkv.cache, lane), scores_of(h2o.policy, h2o.cache, lane));
  EXPECT_EQ(snapkv.policy.select(snapkv.cache.view()), h2o.policy.select(h2o.cache.view()));
}

// Values of one length, here |v|_1 = 4 in every slot: their contributions go by attention alone, so
// that at each step the token goes that TOVA drops. With other values it does not.
TEST(Identities, LongFlowOfValuesOfOneLengthIsTOVA) {
  const auto run_both = [](bool one_length) {
    Replay<kvevict::LongFlow> flow({.budget = 9});
    Replay<kvevict::TOVA> tova({.budget = 9});
    for (std::size_t lane = 0; lane < 4; ++lane) {
      for (std::size_t slot = 0; slot < 100; ++slot) {
        float* value = flow.cache.value(lane / 2, lane % 2, slot);
        const float part = static_cast<float>((slot + lane) % 5) / 2.0F;
        if (one_length) {
          value[slot % 4] = part;
          value[(slot + 1) % 4] = -(2.0F - part);
          value[(slot + 2) % 4] = slot % 3 == 0 ? -1.0F : 1.0F;
          value[(slot + 3) % 4] = 1.0F;
        }
      }
    }
    flow.prompt(9);
    tova.prompt(9);
    std::size_t same = 0;
    for (std::size_t step = 0; step < 40; ++step) {
      flow.step();
      tova.step();
      if (one_length) {
        for (std::size_t layer = 0; layer < 2; ++layer) {
          EXPECT_EQ(scores_of(flow.policy, flow.cache, layer),
                    scores_of(tova.policy, tova.cache, layer));
        }
      }
      const KeepMask mask = tova.policy.select(tova.cache.view());
      EXPECT_EQ(mask.total_evicted(), 4U) << step;
      same += flow.policy.select(flow.cache.view()) == mask ? 1 : 0;
      // Both go on from the same cache, so that each step compares one drop.
      flow.cache.evict(mask);
      flow.policy.apply(mask);
      tova.cache.evict(mask);
      tova.policy.apply(mask);
    }
    return same;
  };
  EXPECT_EQ(run_both(true), 40U);
  EXPECT_LT(run_both(false), 40U);
}

std::shared_ptr<const kvevict::OutputProjection> output_projection() {
  auto projection = std::make_shared<kvevict::OutputProjection>(kFour, 8, std::nullopt, true);
  Random random(14);
  std::vector<float> weight(kFour.num_q_heads * kFour.head_dim * 8);
  for (std::size_t layer = 0; layer < kFour.num_layers; ++layer) {
    for (float& x : weight)
      x = random.eighths();
    projection->set_layer(layer, weight.data());
  }
  return projection;
}
template <class P>
KeepMask prompt_mask(const typename P::Options& options) {
  Replay<P> replay(options);
  replay.prompt(32);
  return replay.policy.select(replay.cache.view());
}

// A first stage that takes all of the budget leaves nothing to the second: the base policy, whose
// heads may share a budget. A first stage of half does not.
TEST(Identities, CriticalKVOfOneStageIsItsBase) {
  const kvevict::SnapKVOptions snapkv{.budget = 11, .observation_window = 4};
  const kvevict::AdaKVOptions ada{.budget = 11, .observation_window = 4};
  const auto projection = output_projection();
  const auto critical = [&](double share) {
    return prompt_mask<kvevict::CriticalKV>(
        {.base = snapkv, .critical = {.first_stage = share}, .output_projection = projection});
  };
  const auto critical_ada = [&](double share) {
    return prompt_mask<kvevict::CriticalAdaKV>(
        {.base = ada, .critical = {.first_stage = share}, .output_projection = projection});
  };
  EXPECT_EQ(critical(1), prompt_mask<kvevict::SnapKV>(snapkv));
  EXPECT_NE(critical(.5), critical(1));
  EXPECT_EQ(critical_ada(1), prompt_mask<kvevict::AdaKV>(ada));
  EXPECT_NE(critical_ada(.5), critical_ada(1));
}

// Chunks of one token are tokens: the window's votes of all heads, one set for a layer.
TEST(Identities, ChunkKVOfSingleTokensIsItsBase) {
  const kvevict::Pooling pooling{.kind = kvevict::PoolKind::kAverage, .kernel_size = 5};
  for (const std::size_t budget : {5U, 11U, 24U}) {
    const auto base = prompt_mask<kvevict::Policy<kvevict::Composed<SharedVoteRecipe>>>(
        {.budget = budget, .observation_window = 4, .pooling = pooling});
    for (const bool fill_rest : {false, true}) {
      EXPECT_EQ(prompt_mask<kvevict::ChunkKV>({.budget = budget,
                                               .observation_window = 4,
                                               .chunk_len = 1,
                                               .pooling = pooling,
                                               .fill_rest = fill_rest}),
                base)
          << budget;
    }
  }
}

// An average that forgets everything is the newest sample.
TEST(Identities, InertiaKVWithoutAPastIsItsNewestSample) {
  for (const bool per_step : {false, true}) {
    const auto kept = [&](double alpha, kvevict::Aggregator aggregator) {
      return run<kvevict::InertiaKV>(
          {.budget = 14, .alpha = alpha, .aggregator = aggregator, .per_step = per_step});
    };
    const auto single = kept(.8, kvevict::Aggregator::kSingle);
    EXPECT_EQ(kept(0, kvevict::Aggregator::kEma), single);
    EXPECT_NE(kept(.8, kvevict::Aggregator::kEma), single);
  }
}

// A window of one row has no variance, so that all layers are preferred alike: SnapKV's masks,
// whatever the layers look at.
TEST(Identities, CAKEWithoutPreferencesIsUniform) {
  const kvevict::Pooling pooling{.kind = kvevict::PoolKind::kAverage, .kernel_size = 5};
  for (const std::size_t budget : {2U, 7U, 20U, 31U}) {
    Replay<kvevict::CAKE> cake({.budget = budget, .observation_window = 1, .pooling = pooling});
    Replay<kvevict::SnapKV> snapkv({.budget = budget, .observation_window = 1, .pooling = pooling});
    cake.prompt(32);
    snapkv.prompt(32);
    EXPECT_EQ(cake.policy.select(cake.cache.view()), snapkv.policy.select(snapkv.cache.view()))
        << budget;
  }
}

// Layers that look at other tokens in the same way, the second one at those of the first in reverse
// order, are preferred alike: the budget is shared evenly, and each layer keeps what it would keep
// if it were alone.
TEST(Identities, CAKEWithEqualPreferencesIsUniform) {
  constexpr std::size_t kLen = 40;
  const auto prompt_of = [&](const CacheShape& shape, std::size_t first_layer) {
    kvevict::CAKE policy({.budget = 11, .observation_window = 4, .pooling = {.kernel_size = 1}},
                         shape);
    WindowCache cache(shape, kLen);
    Random random(12);
    std::vector<float> keys(2 * kLen * 4);
    for (float& x : keys)
      x = random.eighths();
    std::vector<float> queries(4 * 4 * 4);
    for (float& x : queries)
      x = random.eighths();
    for (std::size_t i = 0; i < shape.num_layers; ++i) {
      for (std::size_t head = 0; head < 2; ++head) {
        for (std::size_t slot = 0; slot < kLen; ++slot) {
          const bool reversed = first_layer + i == 1 && slot < kLen - 4;
          const std::size_t from = reversed ? kLen - 5 - slot : slot;
          std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>((head * kLen + from) * 4), 4,
                      cache.key(i, head, slot));
        }
      }
    }
    policy.begin(kLen);
    policy.append(kLen);
    cache.append(kLen);
    for (std::size_t i = 0; i < shape.num_layers; ++i) {
      policy.observe_queries(i,
                             {.data = queries.data(),
                              .num_q_heads = 4,
                              .num_rows = 4,
                              .head_stride = 16,
                              .row_stride = 4},
                             cache.view());
    }
    policy.end_prefill(cache.view());
    return KeepMask(policy.select(cache.view()));
  };
  const KeepMask both = prompt_of(kFour, 0);
  CacheShape one = kFour;
  one.num_layers = 1;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const KeepMask alone = prompt_of(one, layer);
    for (std::size_t head = 0; head < 2; ++head) {
      EXPECT_EQ(both.count(layer, head), 11U);
      EXPECT_EQ(kept_slots(both, layer, head), kept_slots(alone, 0, head));
    }
  }
  EXPECT_NE(kept_slots(both, 0, 0), kept_slots(both, 1, 0));
}

// One vector added to all values moves every output alike: CAOTE does not see it, VATP and LongFlow
// go by how long values are and do. Values and the vector are eighths, which add up exactly; what
// CAOTE then sums is rounded, so that scores agree up to that.
TEST(Invariances, AConstantOnAllValuesIsSeenByNormsAlone) {
  const auto scores = [](auto replay, bool moved) {
    for (std::size_t lane = 0; lane < 4 && moved; ++lane) {
      for (std::size_t slot = 0; slot < 100; ++slot) {
        for (std::size_t c = 0; c < 4; ++c)
          replay.cache.value(lane / 2, lane % 2, slot)[c] += 3.0F - 2.0F * static_cast<float>(c);
      }
    }
    replay.prompt(32);
    std::pair<std::vector<float>, KeepMask> result;
    for (std::size_t lane = 0; lane < replay.policy.sequence().num_lanes(); ++lane) {
      const std::vector<float> all = scores_of(replay.policy, replay.cache, lane);
      result.first.insert(result.first.end(), all.begin(), all.end());
    }
    result.second = replay.policy.select(replay.cache.view());
    return result;
  };
  const auto expect_blind = [&](const auto& replay) {
    const auto before = scores(replay, false);
    const auto after = scores(replay, true);
    for (std::size_t i = 0; i < before.first.size(); ++i)
      EXPECT_NEAR(after.first[i], before.first[i], 2e-6F * (1.0F + before.first[i])) << i;
    EXPECT_EQ(after.second, before.second);
    EXPECT_EQ(before.second.total_count(), 4 * 9U);
  };
  const kvevict::H2OOptions h2o{.heavy = 5, .recent = 4};
  expect_blind(Replay<kvevict::TOVACAOTE>({.budget = 9}));
  expect_blind(Replay<kvevict::TOVAFastCAOTE>({.budget = 9}));
  expect_blind(Replay<kvevict::H2OCAOTE>(h2o));
  expect_blind(Replay<kvevict::H2OFastCAOTE>(h2o));
  const Replay<kvevict::VATP> vatp({.heavy = 5, .recent = 4, .num_sink_tokens = 0});
  EXPECT_NE(scores(vatp, true).second, scores(vatp, false).second);
  const Replay<kvevict::LongFlow> flow({.budget = 9});
  EXPECT_NE(scores(flow, true).second, scores(flow, false).second);
}

// With a square sketch leverage is exact, and that of K A is that of K: K A (A^T K^T K A)^-1 A^T
// K^T. So it also does not matter which square sketch it is. Keys are large, so that the ridge of
// .01 has no part in it. A sketch that is narrower than a key sees the map.
TEST(Invariances, LeverageDoesNotSeeALinearMapOfTheKeys) {
  constexpr std::size_t kDim = 6;
  const auto leverage = [](WindowCache& cache, std::size_t sketch_dim, bool identity) {
    kvevict::LeverageOptions options{.budget = 20, .sketch_dim = sketch_dim};
    if (identity) {
      kvevict::KeySketch sketch(2 * kDim * kDim, 0.0F);
      for (std::size_t i = 0; i < 2 * kDim; ++i)
        sketch[i * kDim + i % kDim] = 1.0F;
      options.key_sketch = std::make_shared<const kvevict::KeySketch>(sketch);
    }
    kvevict::Leverage policy(options, kShape);
    policy.append(64);
    return std::pair(scores_of(policy, cache, 3), KeepMask(policy.select(cache.view())));
  };
  WindowCache cache = random_cache(7);
  change_keys(cache, [](float* row, std::size_t /*slot*/) {
    for (std::size_t c = 0; c < kDim; ++c)
      row[c] *= 256.0F;
  });
  const auto exact = leverage(cache, kDim, true);
  // The trace of a projection: its rank.
  double trace = 0;
  for (const float x : exact.first)
    trace += static_cast<double>(x);
  EXPECT_NEAR(trace, 6.0, 1e-4);
  const auto narrow = leverage(cache, 3, false);
  const auto expect_exact = [&](const auto& other) {
    for (std::size_t slot = 0; slot < 64; ++slot)
      EXPECT_NEAR(other.first[slot], exact.first[slot], 1e-5F) << slot;
    EXPECT_EQ(other.second, exact.second);
  };
  expect_exact(leverage(cache, kDim, false));
  // Unit lower triangular with steps of other lengths: far from a rotation, and exact in floats.
  change_keys(cache, [](float* row, std::size_t /*slot*/) {
    for (std::size_t c = kDim; c-- > 0;) {
      for (std::size_t d = 0; d < c; ++d)
        row[c] += row[d] * (d % 2 == 0 ? 0.5F : -1.0F);
      row[c] *= c % 2 == 0 ? 2.0F : 0.5F;
    }
  });
  expect_exact(leverage(cache, kDim, true));
  expect_exact(leverage(cache, kDim, false));
  EXPECT_NE(leverage(cache, 3, false).second, narrow.second);
}

// What a small budget keeps, a larger one keeps too, where the best scores stay.
TEST(Invariances, ALargerBudgetKeepsWhatASmallerOneKept) {
  WindowCache cache = random_cache(6);
  const std::vector<float> queries = random_queries(4);
  using Make = std::function<KeepMask(std::size_t)>;
  const std::vector<Make> policies = {
      [&](std::size_t b) { return keep<kvevict::Knorm>({.budget = b}, cache); },
      [&](std::size_t b) { return keep<kvevict::KeyDiff>({.budget = b}, cache); },
      [&](std::size_t b) { return keep<kvevict::CurDKV>({.budget = b}, cache); },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::SnapKV>({.budget = b, .observation_window = 4}, cache,
                                                  queries, 4);
      },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::TOVA>({.budget = b}, cache, queries, 4);
      },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::H2O>({.heavy = b - 4, .recent = 4}, cache, queries, 4);
      }};
  for (std::size_t i = 0; i < policies.size(); ++i) {
    KeepMask smaller = policies[i](8);
    for (std::size_t budget = 9; budget < 64; budget += 5) {
      KeepMask larger = policies[i](budget);
      for (std::size_t layer = 0; layer < 2; ++layer) {
        for (std::size_t head = 0; head < 2; ++head) {
          EXPECT_EQ(larger.count(layer, head), budget);
          for (std::size_t slot = 0; slot < 64; ++slot) {
            EXPECT_LE(smaller.keeps(layer, head, slot), larger.keeps(layer, head, slot))
                << i << ' ' << budget;
          }
        }
      }
      smaller = std::move(larger);
    }
  }
}

}  // namespace
}  // namespace kvevict_test
