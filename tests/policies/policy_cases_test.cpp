// The list of policies for the tests of what all of them have in common. Written in one place, so
// that the policies are compiled once for those tests.
#include "support/policy_cases.hpp"

#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/aggregated.hpp"
#include "kvevict/policies/ahakv.hpp"
#include "kvevict/policies/block_eviction.hpp"
#include "kvevict/policies/cake.hpp"
#include "kvevict/policies/caote.hpp"
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/compactor.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/defensivekv.hpp"
#include "kvevict/policies/dms.hpp"
#include "kvevict/policies/dropkv.hpp"
#include "kvevict/policies/entropy_gated_chunkkv.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/epikv_attention.hpp"
#include "kvevict/policies/epikv_key_value.hpp"
#include "kvevict/policies/epikv_lag.hpp"
#include "kvevict/policies/epikv_segments.hpp"
#include "kvevict/policies/expected_attention.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/fastgen.hpp"
#include "kvevict/policies/finch.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/keyformer.hpp"
#include "kvevict/policies/kvcompose.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/lazy_lanes.hpp"
#include "kvevict/policies/nestedkv.hpp"
#include "kvevict/policies/offline_budgets.hpp"
#include "kvevict/policies/pyramidkv.hpp"
#include "kvevict/policies/qfilters.hpp"
#include "kvevict/policies/raas.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/rocketkv.hpp"
#include "kvevict/policies/scissorhands.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/thinkv.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/policies/twinkv.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "kvevict/policies/vase.hpp"
#include "support/random.hpp"
#include "support/score_policy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::GroupReading;
using kvevict::GroupReduce;

/// `options(budget)` gives the options of P.
template <class P, class MakeOptions>
PolicyCase case_of(const std::string& name, MakeOptions options) {
  return {.name = name,
          .make_with = [=](std::size_t budget, const kvevict::kernels::KernelSet& kernel) {
            return AnyTestPolicy(P(options(budget), kToyShape, kernel));
          }};
}
/// A policy that needs nothing but its budget.
template <class P>
PolicyCase case_of(const std::string& name) {
  return case_of<P>(name, [](std::size_t budget) {
    typename P::Options options;
    options.budget = budget;
    return options;
  });
}
PolicyCase cuts_deeper(PolicyCase policy) {
  policy.keeps_exactly = false;
  return policy;
}
PolicyCase without_count(PolicyCase policy) {
  policy.counts_non_finite = false;
  return policy;
}
PolicyCase grows(PolicyCase policy) {
  policy.grows = true;
  return policy;
}
PolicyCase samples_steps(PolicyCase policy) {
  policy.samples_steps = true;
  return policy;
}
/// Scaled values that are not finite are 0 in Lag-KV, so no score is NaN.
kvevict::EpiKVLagOptions lag(std::size_t budget) {
  return {.budget = budget, .chunk_len = 4};
}
kvevict::EpiKVLagOptions frozen_lag(std::size_t budget) {
  return {.budget = budget, .chunk_len = 4, .frozen = true};
}

/// Options of either kind of segments, short enough for a few tokens.
kvevict::EpiKVSegmentOptions segments(std::size_t budget) {
  return {.budget = budget, .segment_len = 4, .cap_high = 3, .cap_middle = 2, .cap_low = 1};
}

std::shared_ptr<const kvevict::OutputProjection> output_projection() {
  constexpr std::size_t kHiddenSize = 12;
  auto projection =
      std::make_shared<kvevict::OutputProjection>(kToyShape, kHiddenSize, std::nullopt, true);
  Random random(9);
  std::vector<float> weight(kToyShape.num_q_heads * kToyShape.value_size() * kHiddenSize);
  for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer) {
    for (float& x : weight)
      x = random.eighths();
    projection->set_layer(layer, weight.data());
  }
  return projection;
}
kvevict::LaProxOptions laprox(std::size_t budget, GroupReading reading) {
  kvevict::LaProxOptions options;
  options.budget = budget;
  options.observation_window = 4;
  options.group_reading = reading;
  if (reading == GroupReading::kExact)
    options.pool_stage = kvevict::PoolStage::kProduct;
  options.output_projection = output_projection();
  return options;
}

kvevict::CriticalKV::Options critical(std::size_t budget, bool l2_norm) {
  return {.base = {.budget = budget, .observation_window = 4},
          .critical = {.l2_norm = l2_norm},
          .output_projection = output_projection()};
}

kvevict::DefensiveKVOptions defensive(std::size_t budget) {
  return {.budget = budget, .observation_window = 4, .output_projection = output_projection()};
}
kvevict::DefensiveKVOptions defensive_model(std::size_t budget) {
  return {.budget = budget,
          .competition = kvevict::Competition::kModel,
          .observation_window = 4,
          .official_window_mass = true,
          .l2_norm = true,
          .output_projection = output_projection()};
}

kvevict::H2OOptions h2o(std::size_t budget) {
  return {.heavy = budget - 3, .recent = std::size_t{3}};
}
kvevict::H2OOptions h2o_shared(std::size_t budget) {
  return {.heavy = budget - 3,
          .recent = std::size_t{3},
          .scope = kvevict::MaskScope::kModel,
          .lifetime_mean = true};
}
kvevict::VATPOptions vatp(std::size_t budget) {
  return {.heavy = budget - 3, .recent = std::size_t{3}, .num_sink_tokens = 1};
}
kvevict::KeyformerOptions keyformer(std::size_t budget) {
  return {.heavy = budget - 3, .recent = std::size_t{3}, .num_sink_tokens = 1, .generation_len = 8};
}
/// Heads that keep heavy and recent tokens; the toy's tokens have no labels.
kvevict::FastGenOptions fastgen(std::size_t budget) {
  return {.recovery = .3, .heavy = budget - 4, .recent = std::size_t{4}};
}
/// Blocks of two; a cut leaves the budget and the block that is being written.
template <class Options>
Options blocks(std::size_t budget) {
  Options options;
  options.budget = budget / 2 * 2;
  options.num_sink_tokens = 2;
  options.recent_window = 2;
  options.block_size = 2;
  options.observation_window = 4;
  return options;
}
kvevict::ThinKVOptions thinkv(std::size_t budget) {
  return {.budget = budget,
          .segment_len = 4,
          .execution_below = .05,
          .transition_from = .3,
          .layers = {1, 2},
          .schedule = {3, 2, 1}};
}
kvevict::InertiaKVOptions inertia(std::size_t budget) {
  return {.budget = budget};
}
kvevict::InertiaKVOptions lazy_inertia(std::size_t budget) {
  return {.budget = budget,
          .per_step = true,
          .refresh_interval = 4,
          .entropy_weighted = true,
          .layers = {1, 3},
          .num_sink_tokens = 1,
          .recent_window = 2};
}

kvevict::ChunkKVOptions chunkkv(std::size_t budget) {
  return {.budget = budget, .observation_window = 4, .chunk_len = 3};
}
kvevict::ChunkKVOptions chunkkv_filled(std::size_t budget) {
  return {.budget = budget,
          .observation_window = 4,
          .chunk_len = 3,
          .fill_rest = true,
          .index_reuse = 2};
}
/// Two partitions and the sinks fill the budget.
kvevict::LagKVOptions lagkv(std::size_t budget) {
  return {.num_sink_tokens = 2, .lag_len = budget / 2};
}
kvevict::LagKVBudgetOptions lagkv_budget(std::size_t budget) {
  return {.budget = budget, .num_sink_tokens = 2, .lag_len = 4};
}
/// Options of policies that know the rotary embedding.
template <class Options>
Options with_rotary(std::size_t budget) {
  Options options;
  options.budget = budget;
  options.rotary.inv_freq = {1.0, 0.1};
  return options;
}
template <class Options>
Options with_statistics(std::size_t budget) {
  Options options = with_rotary<Options>(budget);
  auto statistics = std::make_shared<kvevict::QueryStatistics>(kToyShape, true, options.rotary);
  Random random(21);
  std::vector<float> query(kToyShape.head_dim);
  for (std::size_t head = 0; head < kToyShape.num_layers * kToyShape.num_q_heads * 9; ++head) {
    for (float& x : query)
      x = random.eighths();
    statistics->add(head / 9 / kToyShape.num_q_heads, head / 9 % kToyShape.num_q_heads,
                    query.data());
  }
  options.query_statistics = statistics;
  return options;
}
kvevict::DropKVOptions drop(std::size_t budget) {
  return {.budget = budget, .observation_window = 4};
}
kvevict::AdaKVDropKV::Options ada_drop(std::size_t budget) {
  kvevict::AdaKVDropKV::Options options;
  options.budget = budget;
  options.observation_window = 4;
  return options;
}
template <class Options>
Options twins(std::size_t budget) {
  Options options;
  options.budget = budget;
  options.twins.similarity = .6;
  options.twins.distance = 1;
  options.twins.num_sink_tokens = 1;
  options.twins.recent_window = 2;
  return options;
}
kvevict::TwinKVSnapKV::Options snap_twins(std::size_t budget) {
  auto options = twins<kvevict::TwinKVSnapKV::Options>(budget);
  options.observation_window = 4;
  return options;
}
kvevict::VaSEOptions vase(std::size_t budget) {
  return {.budget = budget,
          .interval = 1,
          .num_sink_tokens = 1,
          .recent_window = 2,
          .observation_window = 4};
}
/// Without an interval: the cache stays at the budget.
kvevict::RandomAttentionOptions random_attention(std::size_t budget) {
  return {.budget = budget, .interval = 1, .recent_window = 2};
}
template <class P>
kvevict::TriAttentionOptions tri(std::size_t budget, kvevict::TriAttentionMode mode) {
  constexpr bool kGiven = P::kAttentionUse == kvevict::AttentionUse::kNone;
  auto options = kGiven ? with_statistics<kvevict::TriAttentionOptions>(budget)
                        : with_rotary<kvevict::TriAttentionOptions>(budget);
  options.interval = 1;
  options.protect_prompt = false;
  options.num_sink_tokens = 1;
  options.recent_window = 2;
  options.mode = mode;
  options.min_queries = 6;
  return options;
}
kvevict::QFiltersOptions qfilters(std::size_t budget) {
  kvevict::QueryFilters filters(kToyShape.num_layers * kToyShape.num_kv_heads * kToyShape.head_dim);
  Random random(13);
  for (float& x : filters)
    x = random.eighths();
  return {.budget = budget,
          .query_filters = std::make_shared<const kvevict::QueryFilters>(std::move(filters))};
}

/// Lanes that share a budget and go their own ways.
TableScoreOptions random_scores(std::size_t budget) {
  Random random(5);
  std::vector<std::vector<float>> scores(8, std::vector<float>(200));
  for (std::vector<float>& lane : scores) {
    for (float& score : lane)
      score = random.eighths();
  }
  return {.budget = budget,
          .scope = kvevict::MaskScope::kHead,
          .competition = kvevict::Competition::kLayer,
          .min_keep = 2,
          .protection = {.recent_window = 1},
          .scores = scores};
}

kvevict::AdaKVOptions ada(std::size_t budget) {
  return {.budget = budget, .observation_window = 4};
}
kvevict::AdaKVOptions ada_guarantee(std::size_t budget) {
  return {.budget = budget,
          .observation_window = 4,
          .floor_rule = kvevict::FloorRule::kGuarantee,
          .pyramid_beta = 3};
}
kvevict::CAKEOptions cake(std::size_t budget) {
  return {.budget = budget, .observation_window = 4};
}
kvevict::CAKEOptions cake_at_prefill_end(std::size_t budget) {
  return {.budget = budget, .observation_window = 4, .only_at_prefill_end = true};
}
kvevict::DuoAttentionOptions duo(std::size_t budget) {
  return {.head_scores = {.1, .2, .3, .4, .8, .7, .6, .5},
          .num_sink_tokens = 2,
          .recent_window = budget - 2};
}
kvevict::EvolKVOptions evol(std::size_t budget) {
  return {.budget = budget, .layer_budgets = {7, 9, 13, 11}, .observation_window = 4};
}
kvevict::HeadKVOptions head(std::size_t budget) {
  return {
      .budget = budget, .head_scores = {.1, .2, .3, .4, .8, .7, .6, .5}, .observation_window = 4};
}
kvevict::ExternalScoresOptions external(std::size_t budget) {
  return {.budget = budget, .num_sink_tokens = 1, .recent_window = 2};
}
kvevict::ExternalScoresOptions external_model(std::size_t budget) {
  return {.budget = budget,
          .competition = kvevict::Competition::kModel,
          .min_keep = 3,
          .only_at_prefill_end = true};
}
/// Below 0 are many, unless the budget is to hold all.
kvevict::KVzapOptions kvzap(std::size_t budget) {
  return {.threshold = budget < 40 ? 0.0F : -1e30F, .recent_window = 2};
}
kvevict::KVzipOptions kvzip(std::size_t budget) {
  return {.budget = budget, .layerwise = true, .num_sink_tokens = 2};
}
/// Half of a workload's tokens, all of a budget that holds it.
kvevict::LUKVKnorm::Options lukv(std::size_t budget) {
  kvevict::LUKVKnorm::Options options;
  if (budget < 40)
    options.prune_ratios = {.5, .6, .45, .5, .3, .4, .52, .5};
  return options;
}
kvevict::PerLayerKnorm::Options per_layer(std::size_t budget) {
  kvevict::PerLayerKnorm::Options options;
  if (budget < 40)
    options.compression_ratios = {.5, .6, .4, .55};
  return options;
}
kvevict::RocketKVOptions rocket(std::size_t budget) {
  return {.budget = budget, .observation_window = 4};
}
/// All layers are lazy.
kvevict::SimLayerKVOptions sim(std::size_t budget) {
  return {.lazy_threshold = 0, .num_initial = 2, .recent_window = budget - 2};
}
/// As KeyDiff itself: its mean key moves while a prompt comes in.
kvevict::AdaKVKeyDiff::Options ada_keydiff(std::size_t budget) {
  kvevict::AdaKVKeyDiff::Options options;
  options.budget = budget;
  options.num_sink_tokens = 1;
  options.recent_window = 1;
  options.only_at_prefill_end = true;
  return options;
}
kvevict::PyramidKVOptions pyramid(std::size_t budget) {
  return {.budget = budget, .observation_window = 4, .beta = 3};
}

template <class P>
typename P::Options dms(std::size_t budget) {
  typename P::Options options;
  options.budget = budget;
  options.recent_window = 2;
  return options;
}
kvevict::DMSQFilters::Options dms_qfilters(std::size_t budget) {
  auto options = dms<kvevict::DMSQFilters>(budget);
  options.query_filters = qfilters(budget).query_filters;
  return options;
}
/// Many tokens are below it, unless the budget is to hold all.
kvevict::DMSKnorm::Options dms_threshold(std::size_t budget) {
  auto options = dms<kvevict::DMSKnorm>(budget);
  options.recent_window = 3;
  if (budget < 40)
    options.threshold = -1.5F;
  return options;
}
kvevict::AggregatedKeyDiff::Options lifetime_mean(std::size_t budget) {
  kvevict::AggregatedKeyDiff::Options options;
  options.budget = budget;
  options.temporal_rule = kvevict::TemporalRule::kLifetimeMean;
  return options;
}
kvevict::EntropyGatedChunkKV::Options entropy_gated(std::size_t budget) {
  kvevict::EntropyGatedChunkKV::Options options;
  options.budget = budget;
  options.observation_window = 4;
  options.chunk_len = 4;
  options.low_entropy_len = 2;
  return options;
}
/// Half of a workload's tokens in each chunk, all of a budget that holds it.
kvevict::RaaSOptions top_half(std::size_t budget) {
  return {.budget = budget, .page_size = 2, .stamp = kvevict::StampRule::kTopHalf};
}
kvevict::FinchOptions finch_chunks(std::size_t budget) {
  return {.budget = kvevict::Budget::keep_ratio(budget < 40 ? .5 : 1.0),
          .observation_window = 2,
          .chunk_len = 6};
}

}  // namespace

const std::vector<PolicyCase>& policy_cases() {
  static const std::vector<PolicyCase> cases = {
      case_of<kvevict::FullKV>("FullKV", [](std::size_t) { return kvevict::FullKVOptions{}; }),
      case_of<kvevict::RandomEviction>(
          "Random",
          [](std::size_t budget) {
            return kvevict::RandomEvictionOptions{
                .budget = budget, .protection = {.num_sink_tokens = 1, .recent_window = 2}};
          }),
      case_of<kvevict::RandomEviction>(
          "RandomAtPrefillEnd",
          [](std::size_t budget) {
            return kvevict::RandomEvictionOptions{
                .budget = budget, .shared = true, .only_at_prefill_end = true};
          }),
      case_of<kvevict::RandomAttention>("RandomAttention", random_attention),
      case_of<kvevict::DropKV>("DropKV", drop),
      case_of<kvevict::AdaKVDropKV>("AdaKVDropKV", ada_drop),
      case_of<kvevict::NestedKV>("NestedKV"),
      case_of<kvevict::TwinKVKnorm>("TwinKVKnorm", twins<kvevict::TwinKVKnorm::Options>),
      case_of<kvevict::TwinKVSnapKV>("TwinKVSnapKV", snap_twins),
      case_of<kvevict::VaSE>("VaSE", vase),
      case_of<kvevict::TriAttention>("TriAttention",
                                     [](std::size_t budget) {
                                       return tri<kvevict::TriAttention>(
                                           budget, kvevict::TriAttentionMode::kPerLayerHead);
                                     }),
      case_of<kvevict::TriAttention>("TriAttentionPerHead",
                                     [](std::size_t budget) {
                                       return tri<kvevict::TriAttention>(
                                           budget, kvevict::TriAttentionMode::kPerHead);
                                     }),
      case_of<kvevict::TriAttentionStats>("TriAttentionStats",
                                          [](std::size_t budget) {
                                            return tri<kvevict::TriAttentionStats>(
                                                budget, kvevict::TriAttentionMode::kUnion);
                                          }),
      case_of<kvevict::StreamingLLM>("StreamingLLM",
                                     [](std::size_t budget) {
                                       return kvevict::StreamingLLMOptions{
                                           .num_sink_tokens = 2, .recent_window = budget - 2};
                                     }),
      case_of<TableScore>("TableScore", random_scores),
      case_of<kvevict::EpiKV>("EpiKV"),
      case_of<kvevict::EpiKVRaw>("EpiKVRaw"),
      case_of<kvevict::EpiKVBands>("EpiKVBands"),
      case_of<kvevict::EpiKVKey>("EpiKVKey"),
      case_of<kvevict::EpiKVValue>("EpiKVValue"),
      without_count(case_of<kvevict::EpiKVLag>("EpiKVLag", lag)),
      without_count(case_of<kvevict::EpiKVLag>("EpiKVLagFrozen", frozen_lag)),
      without_count(case_of<kvevict::EpiKVLagKey>("EpiKVLagKey", lag)),
      case_of<kvevict::EpiKVAttention>("EpiKVAttention"),
      cuts_deeper(case_of<kvevict::EpiKVSegmentHS>("EpiKVSegmentHS", segments)),
      cuts_deeper(case_of<kvevict::EpiKVSeg>("EpiKVSeg", segments)),
      case_of<kvevict::H2O>("H2O", h2o),
      case_of<kvevict::H2O>("H2OShared", h2o_shared),
      case_of<kvevict::InertiaKV>("InertiaKV", inertia),
      case_of<kvevict::InertiaKV>("InertiaKVLazy", lazy_inertia),
      case_of<kvevict::InertiaKVValueNorm>("InertiaKVValueNorm", inertia),
      case_of<kvevict::SnapKV>("SnapKV",
                               [](std::size_t budget) {
                                 return kvevict::SnapKVOptions{.budget = budget,
                                                               .observation_window = 4};
                               }),
      case_of<kvevict::SnapKV>("SnapKVMax",
                               [](std::size_t budget) {
                                 return kvevict::SnapKVOptions{
                                     .budget = budget,
                                     .observation_window = 4,
                                     .pooling = {.kind = kvevict::PoolKind::kMax, .kernel_size = 3},
                                     .group_reduce = GroupReduce::kMax,
                                     .softmax_support = kvevict::SoftmaxSupport::kPast};
                               }),
      case_of<kvevict::TOVA>("TOVA"),
      case_of<kvevict::Knorm>("Knorm"),
      case_of<kvevict::KeyDiff>("KeyDiff",
                                [](std::size_t budget) {
                                  return kvevict::CacheScoreOptions{.budget = budget,
                                                                    .num_sink_tokens = 1,
                                                                    .recent_window = 1,
                                                                    .only_at_prefill_end = true};
                                }),
      case_of<kvevict::AdaKV>("AdaKV", ada),
      case_of<kvevict::AdaKV>("AdaKVGuarantee", ada_guarantee),
      case_of<kvevict::AdaKVKnorm>("AdaKVKnorm"),
      case_of<kvevict::AdaKVKeyDiff>("AdaKVKeyDiff", ada_keydiff),
      case_of<kvevict::CAKE>("CAKE", cake),
      case_of<kvevict::CAKE>("CAKEAtPrefillEnd", cake_at_prefill_end),
      grows(case_of<kvevict::DuoAttention>("DuoAttention", duo)),
      case_of<kvevict::EvolKV>("EvolKV", evol),
      case_of<kvevict::HeadKV>("HeadKV", head),
      case_of<kvevict::ExternalScores>("ExternalScores", external),
      case_of<kvevict::ExternalScores>("ExternalScoresModel", external_model),
      cuts_deeper(grows(case_of<kvevict::KVzap>("KVzap", kvzap))),
      case_of<kvevict::KVzip>("KVzip", kvzip),
      case_of<kvevict::KVCompose>("KVCompose"),
      case_of<kvevict::KVComposeUnstructured>("KVComposeUnstructured"),
      grows(case_of<kvevict::LUKVKnorm>("LUKVKnorm", lukv)),
      grows(case_of<kvevict::PerLayerKnorm>("PerLayerKnorm", per_layer)),
      case_of<kvevict::PyramidKV>("PyramidKV", pyramid),
      case_of<kvevict::RocketKV>("RocketKV", rocket),
      case_of<kvevict::SimLayerKV>("SimLayerKV", sim),
      case_of<kvevict::LaProx>(
          "LaProx", [](std::size_t budget) { return laprox(budget, GroupReading::kMeanNorms); }),
      case_of<kvevict::LaProx>(
          "LaProxHeads",
          [](std::size_t budget) { return laprox(budget, GroupReading::kHeadProducts); }),
      case_of<kvevict::LaProx>(
          "LaProxSummed", [](std::size_t budget) { return laprox(budget, GroupReading::kSummed); }),
      case_of<kvevict::CriticalKV>("CriticalKV",
                                   [](std::size_t budget) { return critical(budget, false); }),
      case_of<kvevict::CriticalKV>("CriticalKVL2",
                                   [](std::size_t budget) { return critical(budget, true); }),
      case_of<kvevict::CriticalAdaKV>("CriticalAdaKV",
                                      [](std::size_t budget) {
                                        return kvevict::CriticalAdaKV::Options{
                                            .base = {.budget = budget, .observation_window = 4},
                                            .output_projection = output_projection()};
                                      }),
      case_of<kvevict::DefensiveKV>("DefensiveKV", defensive),
      case_of<kvevict::DefensiveKV>("DefensiveKVModel", defensive_model),
      case_of<kvevict::TOVACAOTE>("TOVACAOTE"),
      case_of<kvevict::TOVAFastCAOTE>("TOVAFastCAOTE"),
      case_of<kvevict::H2OCAOTE>("H2OCAOTE", h2o),
      case_of<kvevict::H2OFastCAOTE>("H2OFastCAOTE", h2o_shared),
      case_of<kvevict::LongFlow>("LongFlow"),
      case_of<kvevict::VATP>("VATP", vatp),
      case_of<kvevict::Keyformer>("Keyformer", keyformer),
      case_of<kvevict::FastGen>("FastGen", fastgen),
      case_of<kvevict::ThinKV>("ThinKV", thinkv),
      case_of<kvevict::BlockEviction>("BlockEviction", blocks<kvevict::BlockEviction::Options>),
      case_of<kvevict::KVCrush>("KVCrush", blocks<kvevict::KVCrush::Options>),
      without_count(
          case_of<kvevict::AdaptiveRKV>("AdaptiveRKV", blocks<kvevict::AdaptiveRKV::Options>)),
      case_of<kvevict::RKV>("RKV",
                            [](std::size_t budget) {
                              return kvevict::RKVOptions{
                                  .budget = budget, .buffer = 1, .observation_window = 4};
                            }),
      cuts_deeper(case_of<kvevict::RKV>("RKVBuffered",
                                        [](std::size_t budget) {
                                          return kvevict::RKVOptions{.budget = budget - 2,
                                                                     .buffer = 3,
                                                                     .observation_window = 4,
                                                                     .charge_first = true};
                                        })),
      case_of<kvevict::AhaKV>("AhaKV",
                              [](std::size_t budget) {
                                return kvevict::AhaKVOptions{.budget = budget, .recent_window = 4};
                              }),
      cuts_deeper(case_of<kvevict::ScissorHands>("ScissorHands",
                                                 [](std::size_t budget) {
                                                   return kvevict::ScissorHandsOptions{
                                                       .budget = budget,
                                                       .drop = 3,
                                                       .history = 6,
                                                       .recent_window = 2};
                                                 })),
      cuts_deeper(case_of<kvevict::RaaS>("RaaS",
                                         [](std::size_t budget) {
                                           return kvevict::RaaSOptions{
                                               .budget = budget, .page_size = 2, .threshold = 0.1};
                                         })),
      cuts_deeper(case_of<kvevict::RaaS>("RaaSTopHalf", top_half)),
      cuts_deeper(case_of<kvevict::RaaSBounds>("RaaSBounds", top_half)),
      case_of<kvevict::LaProx>(
          "LaProxExact", [](std::size_t budget) { return laprox(budget, GroupReading::kExact); }),
      cuts_deeper(case_of<kvevict::ChunkKV>("ChunkKV", chunkkv)),
      case_of<kvevict::ChunkKV>("ChunkKVFilled", chunkkv_filled),
      without_count(case_of<kvevict::LagKV>("LagKV", lagkv)),
      without_count(case_of<kvevict::LagKVBudget>("LagKVBudget", lagkv_budget)),
      case_of<kvevict::CurDKV>("CurDKV"),
      case_of<kvevict::QFilters>("QFilters", qfilters),
      case_of<kvevict::Finch>("Finch",
                              [](std::size_t budget) {
                                return kvevict::FinchOptions{.budget = budget,
                                                             .observation_window = 4};
                              }),
      grows(case_of<kvevict::Finch>("FinchChunks", finch_chunks)),
      samples_steps(case_of<kvevict::AggregatedKeyDiff>("AggregatedKeyDiff")),
      samples_steps(case_of<kvevict::AggregatedTOVA>("AggregatedTOVA")),
      samples_steps(
          case_of<kvevict::AggregatedKeyDiff>("AggregatedKeyDiffLifetimeMean", lifetime_mean)),
      case_of<kvevict::DMSKnorm>("DMSKnorm", dms<kvevict::DMSKnorm>),
      case_of<kvevict::DMSQFilters>("DMSQFilters", dms_qfilters),
      cuts_deeper(case_of<kvevict::DMSKnorm>("DMSKnormThreshold", dms_threshold)),
      case_of<kvevict::EntropyGatedChunkKV>("EntropyGatedChunkKV", entropy_gated),
      case_of<kvevict::MeanCentredNorm>("MeanCentredNorm"),
      case_of<kvevict::ExpectedAttention>("ExpectedAttention",
                                          with_rotary<kvevict::ExpectedAttentionOptions>),
      case_of<kvevict::ExpectedAttentionStats>("ExpectedAttentionStats",
                                               with_statistics<kvevict::ExpectedAttentionOptions>),
      case_of<kvevict::CapKV>("CapKV", with_rotary<kvevict::CapKVOptions>),
      case_of<kvevict::CapKVStats>("CapKVStats", with_statistics<kvevict::CapKVOptions>),
      case_of<kvevict::Leverage>("Leverage", with_rotary<kvevict::LeverageOptions>),
      case_of<kvevict::Compactor>("Compactor",
                                  [](std::size_t budget) {
                                    auto options = with_rotary<kvevict::CompactorOptions>(budget);
                                    options.num_sink_tokens = 2;
                                    options.recent_window = 1;
                                    options.chunk_len = 6;
                                    return options;
                                  }),
      case_of<kvevict::NonCausal>("NonCausal",
                                  [](std::size_t budget) {
                                    return kvevict::NonCausalOptions{.budget = budget,
                                                                     .chunk_len = 6};
                                  }),
  };
  return cases;
}

namespace {

TEST(PolicyCases, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const PolicyCase& policy : policy_cases()) {
    EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
  }
}

}  // namespace
}  // namespace kvevict_test
