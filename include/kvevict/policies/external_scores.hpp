#ifndef KVEVICT_POLICIES_EXTERNAL_SCORES_HPP_
#define KVEVICT_POLICIES_EXTERNAL_SCORES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/given_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// Policies that select by scores which the library does not work out itself: observe_scores.

struct ExternalScoresOptions {
  Budget budget = 1024;  ///< tokens per KV head (on average), protected ones included
  Competition competition = Competition::kLane;  ///< who shares a budget: uniform, layer, model
  std::size_t min_keep = 1;  ///< of each KV head where several share a budget, or a threshold
  /// Of scores: what lies below goes even where the budget has room. The default is none.
  float threshold = -std::numeric_limits<float>::infinity();
  float unscored = 0;                ///< score of a token until it is given one
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
};

/// The best by scores that the engine hands over for each layer, KV head and slot: what a learned
/// scorer (KVzap, KVP, LookaheadKV), a gradient (KVgrad) or any other outside party makes of a
/// token. Higher = keep; the scale is the caller's, and where lanes share a budget it has to be the
/// same for all of them.
///
/// With a threshold what scores less goes, whatever the budget has room for (KVzap, arXiv
/// 2601.07891: about -4 or -7 with a recent window of 128); a score equal to it stays, as in
/// kvpress. What is left competes for the budget, and a head keeps its best min_keep however
/// low they are, which KVzap does not promise. `unscored` has to lie on the
/// right side of the threshold for tokens that nobody scored.
struct ExternalScoresRecipe : CutsByCacheScore {
  using Options = ExternalScoresOptions;
  static constexpr std::string_view kName = "ExternalScores";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(!std::isnan(options.threshold), kName, "threshold", options.threshold,
                    "must be a number");
    detail::require(std::isfinite(options.unscored), kName, "unscored", options.unscored,
                    "must be finite");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(GivenScores(shape, options.unscored));
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget,
            .competition = options.competition,
            .min_keep = options.min_keep,
            .threshold = options.threshold};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("competition", options.competition);
    visit("min_keep", options.min_keep);
    visit("threshold", options.threshold);
    visit("unscored", options.unscored);
  }
};

struct KVzapOptions {
  float threshold = -4;             ///< tokens that score less go (tau; -4 for Qwen3, -7 Llama-3.1)
  std::size_t recent_window = 128;  ///< newest tokens that always stay
};

/// The logarithm of KVzip's score, predicted from the hidden state of each token (KVzap, arXiv
/// 2601.07891): what is below the threshold goes once it has left the recent window. The model that
/// predicts is the engine's to run; its scores come through observe_scores. No budget: how much
/// stays is up to the text. A token without a score counts as 0 and stays, and so does a KV head's
/// best one (rule R15), which the paper does not promise.
struct KVzapRecipe : CutsEveryStep {
  using Options = KVzapOptions;
  static constexpr std::string_view kName = "KVzap";

  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.recent_window};
  }
  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return Pipeline(GivenScores(shape));
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = std::numeric_limits<std::size_t>::max(), .threshold = options.threshold};
  }
  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(std::isfinite(options.threshold), kName, "threshold", options.threshold,
                    "must be finite");
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("threshold", options.threshold);
    visit("recent_window", options.recent_window);
  }
};

struct KVzipOptions {
  Budget budget = Budget::keep_ratio(0.3);  ///< per KV head on average, sinks included
  bool layerwise = false;           ///< every layer keeps the same number (as kvpress names it)
  std::size_t num_sink_tokens = 4;  ///< first tokens that always stay
  std::size_t min_keep = 1;         ///< of each KV head, however it scores; 0 as the authors
};

/// What reading the text a second time looks at (KVzip, arXiv 2505.23416, section 3): after the
/// prompt the model is asked to repeat it, chunk by chunk, and
///
///   score(l, h, i) = max over rows t of that pass and query heads of the group of a[t, i],
///
/// the softmax over sinks, the chunk and the pass' own tokens. The worst of all layers and heads
/// together go, once at the end of each prompt; what is decoded stays. Scores come through
/// observe_scores between end_prefill and select: ReplayScores computes them from the pass' queries
/// and keys, with values for KVzip+ (| v W_O |_2 / | h_t |_2).
///
/// kvpress drops int(ratio L H n); here n is rounded per KV head, so ask for Budget::total to have
/// its number. The authors' variant by threshold is ExternalScores. Each KV head keeps one entry
/// (rule R15), which neither of them promises.
struct KVzipRecipe : CutsPrompts {
  using Options = KVzipOptions;
  static constexpr std::string_view kName = "KVzip";

  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .after_prompt = true};
  }
  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return Pipeline(GivenScores(shape));
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget,
            .competition = options.layerwise ? Competition::kLayer : Competition::kModel,
            .min_keep = options.min_keep};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("layerwise", options.layerwise);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("min_keep", options.min_keep);
  }
};

// policy: ExternalScores | as given | scores of your own (`observe_scores`) | - | head
//   | at any time | 4 B per KV head | a pass over the scores | -
using ExternalScores = Policy<Composed<ExternalScoresRecipe>>;
// policy: KVzap | as given; goes if below -4, behind the recent window
//   | scores of a trained model (`observe_scores`) | - | head | at any time | 4 B per KV head
//   | a pass over the scores | 2601.07891
using KVzap = Policy<Composed<KVzapRecipe>>;
// policy: KVzip | `max_t max_h a[h,t,i]`, t the rows of the second pass
//   | scores of a second pass over the prompt (`ReplayScores`) | - | head | at prompt ends
//   | 4 B per KV head | none | 2505.23416
using KVzip = Policy<Composed<KVzipRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EXTERNAL_SCORES_HPP_
