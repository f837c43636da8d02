#ifndef KVEVICT_COMPOSITION_PARTS_HPP_
#define KVEVICT_COMPOSITION_PARTS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/pyramid.hpp"
#include "kvevict/composition_additions.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/forward_max.hpp"
#include "kvevict/scoring/key_twins.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/output_change.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/head_floors.hpp"
#include "kvevict/selection/twin_repair.hpp"
#include "kvevict/selection/whole_chunks.hpp"
#include "kvevict/temporal/refresh_steps.hpp"
#include "kvevict/temporal/scores_over_steps.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

// Parts by name. Each has options of its own, says of what kind it is and what it adds.
KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// What parts may need of the model.
struct PartContext {
  std::string_view where;  ///< the part and its column, for messages
  const CacheShape& shape;
  const std::shared_ptr<const OutputProjection>& output_projection;
};

/// Scores are read as weights of 0 and more.
template <OutputEstimate kEstimate>
struct CaotePart {
  static constexpr std::string_view kName =
      kEstimate == OutputEstimate::kExact ? "caote" : "fast_caote";
  static constexpr PartKind kKind = PartKind::kStage | PartKind::kReadsValues;
  struct Options {
    bool raw = false;  ///< the scores are attention already: do not divide them by their sum
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("raw", options.raw);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    if (!options.raw)
      to.stages.stages.emplace_back(SumToOne{});
    to.stages.stages.emplace_back(OutputChange{kEstimate});
  }
};

/// Scores are read as weights of 0 and more.
struct ValuesPart {
  static constexpr std::string_view kName = "values";
  static constexpr PartKind kKind = PartKind::kStage | PartKind::kReadsValues;
  struct Options {
    ValueFactor factor = ValueFactor::kNorm;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("factor", options.factor);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_value_factor(context.where, options.factor, context.output_projection.get(),
                       context.shape, GroupReading::kMeanNorms);
    to.stages.stages.emplace_back(TimesValues{.factor = options.factor,
                                              .reading = GroupReading::kMeanNorms,
                                              .projection = context.output_projection});
  }
};

struct PoolPart {
  static constexpr std::string_view kName = "pool";
  static constexpr PartKind kKind = PartKind::kStage;
  using Options = Pooling;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("kind", options.kind);
    visit("kernel_size", options.kernel_size);
    visit("edge", options.edge);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    options.check(context.where);
    to.stages.stages.emplace_back(Pool{options});
  }
};

struct ForwardMaxPart {
  static constexpr std::string_view kName = "forward_max";
  static constexpr PartKind kKind = PartKind::kStage;
  using Options = ForwardMax;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("width", options.width);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    require(options.width > 0, context.where, "width", options.width, "must be > 0");
    to.stages.stages.emplace_back(options);
  }
};

/// A part without options.
struct PlainPart {
  struct Options {};
  template <class Visit>
  static void visit_options(Options& /*options*/, Visit&& /*visit*/) {}
};
/// A stage as it is.
template <class Stage, const std::string_view& kText>
struct StagePart : PlainPart {
  static constexpr std::string_view kName = kText;
  static constexpr PartKind kKind =
      std::same_as<Stage, SharesOfLayer> ? PartKind::kStage | PartKind::kFinish : PartKind::kStage;
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(Stage{});
  }
};
inline constexpr std::string_view kSumToOneName = "sum_to_one";
inline constexpr std::string_view kZScoresName = "z_scores";
inline constexpr std::string_view kAtLeastMeanName = "at_least_mean";
inline constexpr std::string_view kLayerSharesName = "layer_shares";

/// Who competes with whom.
template <Competition kCompetition>
struct CompetitionPart : PlainPart {
  static constexpr std::string_view kName = kCompetition == Competition::kLayer ? "layer" : "model";
  static constexpr PartKind kKind =
      kCompetition == Competition::kLayer ? PartKind::kLayerPool : PartKind::kModelPool;
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.competition = kCompetition;
  }
};

struct AdaPart {
  static constexpr std::string_view kName = "ada";
  static constexpr PartKind kKind = PartKind::kLayerPool | PartKind::kSelection;
  struct Options {
    double floor = 0.2;
    FloorRule rule = FloorRule::kInterpolate;
    bool floor_of_whole = false;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("floor", options.floor);
    visit("rule", options.rule);
    visit("floor_of_whole", options.floor_of_whole);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_floor(context.where, options.floor);
    to.competition = Competition::kLayer;
    to.selector.emplace<HeadFloors>(options.rule, options.floor, false, options.floor_of_whole);
  }
};

struct ChunksPart {
  static constexpr std::string_view kName = "chunks";
  static constexpr PartKind kKind = PartKind::kSelection;
  using Options = ChunkOptions;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("chunk_len", options.chunk_len);
    visit("score", options.score);
    visit("fill_rest", options.fill_rest);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    options.check(context.where);
    to.selector.emplace<WholeChunks>(options);
  }
};

/// The two stages of CriticalKV over any scores; in the place of CriticalKV's own where it is the
/// policy. Epsilon is in units of attention there too.
struct CriticalPart {
  static constexpr std::string_view kName = "critical";
  static constexpr PartKind kKind = PartKind::kSecondStage | PartKind::kReadsValues;
  using Options = CriticalOptions;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    options.visit_options(visit);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    options.check(context.where, context.output_projection.get(), context.shape);
    to.second_stage = options.stages(context.output_projection);
  }
};

/// TwinKV's repair of any selection.
struct TwinsPart {
  static constexpr std::string_view kName = "twins";
  static constexpr PartKind kKind = PartKind::kTwins;
  using Options = TwinRepairOptions;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("similarity", options.similarity);
    visit("distance", options.distance);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    options.check(context.where);
    to.twins.emplace(BestOfAll{}, KeyTwins(options.distance), options);
  }
};

/// A temporal rule over the scores so far; parts behind it work on what it makes of them.
struct TemporalPart {
  static constexpr std::string_view kName = "temporal";
  static constexpr PartKind kKind = PartKind::kRule;
  struct Options : NamedRule {
    RefreshSteps refresh;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("rule", options.rule);
    visit("decay", options.decay);
    visit("threshold", options.threshold);
    visit("window", options.window_len);
    visit("refresh_interval", options.refresh.interval);
    visit("score_free", options.refresh.score_free);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    options.check(context.where);
    options.refresh.check(context.where);
    require(options.uses_decay() || options.decay == Options{}.decay, context.where, "decay",
            options.decay, "has a meaning for rule = ema and decayed_sum alone");
    require(options.uses_threshold() || options.threshold == Options{}.threshold, context.where,
            "threshold", options.threshold, "has a meaning for rule = count and last_time alone");
    to.rule = options;
    to.refresh = options.refresh;
  }
};

/// Sinks and recent tokens for a policy that keeps fewer.
struct ProtectPart {
  static constexpr std::string_view kName = "protect";
  static constexpr PartKind kKind = PartKind::kWindows;
  using Options = AddedWindows;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    to.windows = options;
  }
};

/// How often to cut, for a policy that cuts at any time and has no options for this.
struct SchedulePart {
  static constexpr std::string_view kName = "schedule";
  static constexpr PartKind kKind = PartKind::kSchedule;
  using Options = CutSchedule;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("cuts_prompts", options.cuts_prompts);
    visit("decode_interval", options.decode_interval);
    visit("slack", options.slack);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    require(options.decode_interval > 0, context.where, "decode_interval", options.decode_interval,
            "must be > 0");
    to.schedule = options;
  }
};

// Who gets how much of the policy's budget.

/// PyramidKV's line over the layers, for a policy that cuts prompts once: it changes with their
/// length.
struct PyramidPart {
  static constexpr std::string_view kName = "pyramid";
  static constexpr PartKind kKind = PartKind::kBudgets | PartKind::kPromptsAlone;
  struct Options {
    double beta = 20;  ///< the last layer gets one part in beta of an equal share
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("beta", options.beta);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    require(options.beta >= 1.0, context.where, "beta", options.beta, "must be >= 1");
    to.budgets = [options](const CacheShape& shape, const Budget& budget, std::size_t window) {
      return PyramidBudgets(shape, budget, window, options.beta, PyramidRounding::kExact);
    };
  }
};

/// EvolKV's table of layers.
struct LayerBudgetsPart {
  static constexpr std::string_view kName = "layer_budgets";
  static constexpr PartKind kKind = PartKind::kBudgets;
  struct Options {
    std::vector<std::size_t> tokens = {};  ///< [layers] per KV head, in proportion
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("tokens", options.tokens);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_table_size(context.where, "tokens", options.tokens.size(),
                     {for_each_layer(context.shape)});
    to.budgets = [options, where = std::string(context.where)](
                     const CacheShape& shape, const Budget& budget, std::size_t window) {
      return LayerTable(where, "tokens", shape, budget, window, options.tokens);
    };
  }
};

/// HeadKV's scores of heads.
struct HeadScoresPart {
  static constexpr std::string_view kName = "head_scores";
  static constexpr PartKind kKind = PartKind::kBudgets;
  struct Options {
    std::vector<double> scores = {};  ///< [layers * KV heads] or [layers * query heads], >= 0
    double power = 1;                 ///< that they are raised to
    double beta = 1.5;                ///< one part in beta of the budget goes by score
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("scores", options.scores);
    visit("power", options.power);
    visit("beta", options.beta);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_table_size(context.where, "scores", options.scores.size(),
                     {for_each_kv_head(context.shape), for_each_query_head(context.shape)});
    to.budgets = [options, where = std::string(context.where)](
                     const CacheShape& shape, const Budget& budget, std::size_t window) {
      return HeadTable(where, "scores", shape, budget, window, options.scores, options.power,
                       options.beta, false);
    };
  }
};

/// Shares of layers or heads; the policy's own budget has no meaning then.
struct CompressionRatiosPart {
  static constexpr std::string_view kName = "compression_ratios";
  static constexpr PartKind kKind = PartKind::kBudgets;
  struct Options {
    std::vector<double> ratios = {};  ///< [layers] or [layers * KV heads] of tokens that go
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("ratios", options.ratios);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_table_size(context.where, "ratios", options.ratios.size(),
                     {for_each_layer(context.shape), for_each_kv_head(context.shape)});
    to.budgets = [options, where = std::string(context.where)](
                     const CacheShape& shape, const Budget& /*budget*/, std::size_t /*window*/) {
      return ShareTable(where, "ratios", shape, options.ratios, ShareRounding::kExact, false);
    };
  }
};

template <class... Parts>
struct PartList {};

/// Every part that a text can add. A new one is a line here.
// clang-format off
using NamedParts = PartList<
    CaotePart<OutputEstimate::kExact>,
    CaotePart<OutputEstimate::kMeanValue>,
    ValuesPart,
    PoolPart,
    ForwardMaxPart,
    StagePart<SumToOne, kSumToOneName>,
    StagePart<StandardScores, kZScoresName>,
    StagePart<AtLeastMean, kAtLeastMeanName>,
    TemporalPart,
    StagePart<SharesOfLayer, kLayerSharesName>,
    ProtectPart,
    SchedulePart,
    PyramidPart,
    LayerBudgetsPart,
    HeadScoresPart,
    CompressionRatiosPart,
    CompetitionPart<Competition::kLayer>,
    CompetitionPart<Competition::kModel>,
    AdaPart,
    ChunksPart,
    CriticalPart,
    TwinsPart>;
// clang-format on

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_COMPOSITION_PARTS_HPP_
