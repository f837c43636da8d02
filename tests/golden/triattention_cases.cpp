#include "golden/drivers.hpp"
#include "golden/growing_text.hpp"
#include "golden/run_options.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy TriAttention`: one cut of a cache with gaps, by statistics that are given
// or come from queries. And of `triattention_online`: a text whose own queries the policy gathers.
namespace kvevict_test {
namespace {

using kvevict::TriAttentionMode;
using kvevict::TriAttentionStats;

/// The name of a record of a layer.
std::string of_layer(std::size_t layer, const std::string& record) {
  return "L" + std::to_string(layer) + "." + record;
}

void compare_statistics(const GoldenCase& golden, GoldenReport& report,
                        const kvevict::QueryStatistics& statistics,
                        const kvevict::CacheShape& shape, const kvevict::RotaryEmbedding& rotary) {
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<double> real;
    std::vector<double> imag;
    std::vector<double> lengths;
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      for (std::size_t f = 0; f < rotary.num_pairs(); ++f) {
        const auto [c, d] = rotary.channels(f);
        real.push_back(statistics.mean(layer, head)[c]);
        imag.push_back(statistics.mean(layer, head)[d]);
        lengths.push_back(statistics.band_lengths(layer, head)[f]);
      }
    }
    for (const auto& [record, actual] :
         {std::pair{"q_mean_real", &real}, std::pair{"q_mean_imag", &imag},
          std::pair{"q_abs_mean", &lengths}}) {
      const std::string name = of_layer(layer, record);
      report.scores(name, golden.tensor(name).values, *actual);
    }
  }
}

struct TriCase {
  const GoldenCase& golden;
  kvevict::CacheShape shape;
  std::size_t len;
  std::vector<float> keys;  // [layers, num_kv_heads, len, head_dim]
  kvevict::RotaryEmbedding rotary;
  std::shared_ptr<kvevict::QueryStatistics> statistics;

  explicit TriCase(const GoldenCase& given)
      : golden(given),
        shape{.num_layers = given.count("num_layers"),
              .num_q_heads = given.count("num_q_heads"),
              .num_kv_heads = given.count("num_kv_heads"),
              .head_dim = given.count("head_dim")},
        len(given.count("n")) {
    rotary.inv_freq = golden.tensor("inv_freq").values;
    rotary.attention_scaling = golden.real("attention_scaling");
    const std::string& pairing = golden.text("pairing");
    if (pairing != "half" && pairing != "interleaved")
      throw std::runtime_error("pairing " + pairing);
    rotary.pairing =
        pairing == "half" ? kvevict::RotaryPairing::kHalf : kvevict::RotaryPairing::kInterleaved;
    if (2 * rotary.num_pairs() != golden.count("rotary_dim"))
      throw std::runtime_error("rotary_dim");
    statistics = std::make_shared<kvevict::QueryStatistics>(shape, false, rotary);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::vector<float> rows = golden.tensor(of_layer(layer, "keys")).floats();
      keys.insert(keys.end(), rows.begin(), rows.end());
      if (golden.has(of_layer(layer, "queries_for_statistics"))) {
        gather(layer);
      } else {
        read(layer);
      }
    }
  }

  void read(std::size_t layer) const {
    const std::size_t bands = rotary.num_pairs();
    const std::vector<float> real = golden.tensor(of_layer(layer, "q_mean_real")).floats();
    const std::vector<float> imag = golden.tensor(of_layer(layer, "q_mean_imag")).floats();
    const std::vector<float> lengths = golden.tensor(of_layer(layer, "q_abs_mean")).floats();
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      std::vector<float> mean(shape.head_dim);
      for (std::size_t f = 0; f < bands; ++f) {
        const auto [c, d] = rotary.channels(f);
        mean[c] = real[head * bands + f];
        mean[d] = imag[head * bands + f];
      }
      statistics->set(layer, head, mean, {}, std::span(lengths).subspan(head * bands, bands));
    }
  }
  /// Queries are as attention used them, at positions of their own.
  void gather(std::size_t layer) const {
    const std::vector<double>& positions = golden.tensor(of_layer(layer, "query_positions")).values;
    std::vector<float> rows = golden.tensor(of_layer(layer, "queries_for_statistics")).floats();
    float* query = rows.data();
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      for (const double position : positions) {
        for (std::size_t f = 0; f < rotary.num_pairs(); ++f)
          rotary.turn_pair(f, rotary.factor(f, -position) / rotary.attention_scaling, query);
        statistics->add(layer, head, query);
        query += shape.head_dim;
      }
    }
  }

  [[nodiscard]] kvevict::views::ContiguousView view(std::size_t count) {
    return {shape,
            kvevict::views::Tensor::hnd(keys.data(), kvevict::ElementType::kF32, len,
                                        shape.num_kv_heads, shape.head_dim),
            {},
            count};
  }
  [[nodiscard]] kvevict::TriAttentionOptions options(TriAttentionMode mode,
                                                     std::size_t budget) const {
    kvevict::TriAttentionOptions result;
    result.budget = budget;
    result.interval = 1;
    result.protect_prompt = golden.count("protect_prompt") != 0;
    result.num_sink_tokens = 0;
    result.recent_window = golden.count("recent");
    result.mode = mode;
    result.first_layer = 0;
    result.largest_offset = golden.count("offset_max");
    const std::string& aggregation = golden.text("aggregation");
    if (aggregation != "mean" && aggregation != "max")
      throw std::runtime_error("aggregation " + aggregation);
    result.offset_reduce =
        aggregation == "max" ? kvevict::OffsetReduce::kMax : kvevict::OffsetReduce::kMean;
    result.rotary = rotary;
    result.query_statistics = statistics;
    return result;
  }
  /// A policy whose sequence holds the tokens of the case.
  [[nodiscard]] TriAttentionStats policy(const kvevict::TriAttentionOptions& made_with) {
    TriAttentionStats result(made_with, shape);
    const std::size_t num_prompt = golden.count("num_prompt");
    const std::size_t length = golden.count("round_start");
    result.begin(num_prompt);
    result.append(num_prompt);
    result.end_prefill(view(num_prompt));
    if (length > num_prompt)
      result.append(length - num_prompt);
    kvevict::KeepMask mask;
    mask.reset(kvevict::MaskScope::kModel, shape.num_layers, shape.num_kv_heads);
    const std::span<std::uint64_t> bits = mask.add_lane(length);
    const std::vector<int> positions = golden.tensor("positions").ints();
    for (const int position : positions) {
      const auto slot = static_cast<std::size_t>(position);
      bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
    }
    result.apply(mask);
    return result;
  }
  /// Bits of the slots that may go.
  [[nodiscard]] std::vector<std::uint64_t> candidates() const {
    std::vector<std::uint64_t> bits((len + 63) / 64);
    const std::vector<int> given = golden.tensor("candidates").ints();
    for (std::size_t slot = 0; slot < len; ++slot)
      bits[slot / 64] |= static_cast<std::uint64_t>(given[slot] != 0) << (slot % 64);
    return bits;
  }
  /// S of every query head of a layer.
  [[nodiscard]] std::vector<float> raw(const kvevict::TriAttentionOptions& made_with,
                                       std::size_t layer) {
    const TriAttentionStats scored = policy(made_with);
    const auto all = view(len);
    const kvevict::ViewRef ref(all);
    kvevict::Scratch scratch;
    const kvevict::ScoreInput input{ref, scored.sequence(), kvevict::kernels::best(), scratch};
    std::vector<float> result;
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      kvevict::LaneScores scores(input, shape.lane_of(kvevict::MaskScope::kHead, layer, head));
      scored.method().parts().signal().score(input, scores);
      for (std::size_t g = 0; g < scores.num_arrays(); ++g)
        result.insert(result.end(), scores.array(g).begin(), scores.array(g).end());
    }
    return result;
  }
  /// What lanes compete with, [lanes, len], 0 where nothing may go.
  [[nodiscard]] std::vector<float> scores(TriAttentionMode mode) {
    const TriAttentionStats scored = policy(options(mode, golden.count("budget.0")));
    const auto all = view(len);
    const kvevict::ViewRef ref(all);
    kvevict::Scratch scratch;
    std::vector<std::uint64_t> bits = candidates();
    std::vector<std::uint64_t> keep(bits.size());
    const std::size_t num_lanes = scored.sequence().num_lanes();
    std::vector<float> result(num_lanes * len);
    std::vector<kvevict::ScoredLane> lanes;
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      lanes.push_back({lane, std::span(result).subspan(lane * len, len), bits, keep});
      scored.method().score({ref, scored.sequence(), kvevict::kernels::best(), scratch, bits}, lane,
                            lanes.back().scores);
    }
    scored.method().normalise(lanes, {ref, scored.sequence(), kvevict::kernels::best(), scratch});
    for (std::size_t i = 0; i < result.size(); ++i) {
      if ((bits[i % len / 64] >> (i % len % 64) & 1U) == 0)
        result[i] = 0.0F;
    }
    return result;
  }
  /// [layers, num_kv_heads, len]
  [[nodiscard]] std::vector<int> keep(TriAttentionMode mode, std::size_t budget) {
    const TriAttentionStats cut = policy(options(mode, budget));
    const kvevict::KeepMask& mask = cut.select(view(len));
    std::vector<int> result;
    for (std::size_t lane = 0; lane < shape.num_layers * shape.num_kv_heads; ++lane) {
      for (std::size_t slot = 0; slot < len; ++slot) {
        const bool kept = mask.keeps(lane / shape.num_kv_heads, lane % shape.num_kv_heads, slot);
        result.push_back(kept ? 1 : 0);
      }
    }
    return result;
  }
};

std::vector<float> rows(const std::vector<float>& all, std::size_t first, std::size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

void compare_raw(TriCase& tri, GoldenReport& report, std::size_t layer) {
  const auto plain = tri.options(TriAttentionMode::kPerLayerHead, tri.golden.count("budget.0"));
  const auto compare = [&](const std::string& suffix, auto change) {
    const std::string record = of_layer(layer, "raw" + suffix);
    if (!tri.golden.has(record))
      return;
    auto options = plain;
    change(options);
    report.scores(record, tri.golden.tensor(record).values, tri.raw(options, layer));
  };
  using Options = kvevict::TriAttentionOptions;
  compare("", [](Options&) {});
  compare(".max", [](Options& o) { o.offset_reduce = kvevict::OffsetReduce::kMax; });
  compare(".norm_full", [](Options& o) { o.band_weight = kvevict::BandWeight::kWhole; });
  compare(".no_norm", [](Options& o) { o.band_weight = kvevict::BandWeight::kNone; });
  compare(".no_trig", [](Options& o) { o.use_distance = false; });
}

}  // namespace

void run_triattention(const GoldenCase& golden, GoldenReport& report) {
  report.covers(TriAttentionStats::kName);
  TriCase tri(golden);
  const kvevict::CacheShape& shape = tri.shape;
  const std::size_t lane_size = shape.num_kv_heads * tri.len;
  compare_statistics(golden, report, *tri.statistics, shape, tri.rotary);
  const std::vector<float> scores = tri.scores(TriAttentionMode::kPerLayerHead);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    compare_raw(tri, report, layer);
    const std::string record = of_layer(layer, "scores");
    report.scores(record, golden.tensor(record).values, rows(scores, layer * lane_size, lane_size));
  }
  report.scores("union.scores", golden.tensor("union.scores").values,
                tri.scores(TriAttentionMode::kUnion));
  // Every layer has them.
  const std::vector<float> shared = tri.scores(TriAttentionMode::kPerHead);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    report.scores("per_head.scores", golden.tensor("per_head.scores").values,
                  rows(shared, layer * lane_size, lane_size));
  }
  for (std::size_t i = 0; golden.has("budget." + std::to_string(i)); ++i) {
    const std::string number = "." + std::to_string(i);
    const std::size_t budget = golden.count("budget" + number);
    const std::vector<int> own = tri.keep(TriAttentionMode::kPerLayerHead, budget);
    const std::vector<int> per_head = tri.keep(TriAttentionMode::kPerHead, budget);
    const std::vector<int> one = tri.keep(TriAttentionMode::kUnion, budget);
    const auto first = [](const std::vector<int>& all, std::size_t begin, std::size_t count) {
      return std::vector<int>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                              all.begin() + static_cast<std::ptrdiff_t>(begin + count));
    };
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::string record = of_layer(layer, "keep.per_layer_head" + number);
      report.equal(record, golden.tensor(record).values, first(own, layer * lane_size, lane_size));
      report.equal("keep.per_head" + number, golden.tensor("keep.per_head" + number).values,
                   first(per_head, layer * lane_size, lane_size));
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        report.equal("keep.union" + number, golden.tensor("keep.union" + number).values,
                     first(one, layer * lane_size + head * tri.len, tri.len));
      }
    }
  }
}

void run_triattention_online(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    kvevict::TriAttention::Options options;
    options.rotary.inv_freq = golden.tensor("inv_freq").values;
    options.rotary.attention_scaling = golden.real("attention_scaling");
    set_run_options<kvevict::TriAttention>(golden, name, options);
    refuse_other_options(golden, name);
    for (const std::size_t chunk : {GrowingText::kWhole, GrowingText::kPiece}) {
      GrowingText text(golden);
      kvevict::TriAttention policy(options, text.shape());
      text.run(report, name, policy, chunk, [&](std::size_t first, std::size_t count) {
        text.hand_over_queries(policy, first, count);
      });
      compare_statistics(golden, report, kvevict::gathered_statistics(policy), text.shape(),
                         options.rotary);
    }
  }
}

}  // namespace kvevict_test
