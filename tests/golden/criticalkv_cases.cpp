#include "golden/base_recipe.hpp"
#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/output_projections.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/scoring/critical_scores.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// Cases of `text policy criticalkv` and `criticaladakv`: kvpress, whose scores are means over the
// window's rows and whose first stage counts the window, and runs of the paper's form.
namespace kvevict_test {
namespace {

using Projection = std::shared_ptr<const kvevict::OutputProjection>;

/// CriticalKV over the recipe `Base`, with kvpress' count of the first stage.
template <class Base>
auto over(const GoldenCase& golden, const typename Base::Options& base, double first_stage,
          const Projection& projection, const kvevict::CacheShape& shape) {
  kvevict::CriticalKVOptions<Base> options;
  options.base = base;
  options.critical.first_stage = first_stage;
  options.first_stage_counts_window = true;
  options.critical.epsilon = golden.real("epsilon");
  options.output_projection = projection;
  return kvevict::Policy<kvevict::Composed<kvevict::CriticalKVRecipe<Base>>>(options, shape);
}

Projection projection_of(const GoldenCase& golden, const kvevict::CacheShape& shape) {
  auto projection = std::make_shared<kvevict::OutputProjection>(shape, golden.count("hidden_size"),
                                                                std::nullopt, true);
  projection->set_layer(0, golden.tensor("W_O").floats().data());
  return projection;
}

/// |v W_O^h|_1 of the one layer, mean over each group.
std::vector<float> projected_norms(const WindowPrompt& prompt,
                                   const kvevict::OutputProjection& projection) {
  const std::size_t group = prompt.shape.group_size();
  std::vector<float> mean(prompt.shape.num_kv_heads * prompt.len);
  std::vector<float> norms(prompt.len);
  std::vector<float> gathered;
  std::vector<float> widened;
  std::vector<float> scratch;
  const auto view = prompt.view(prompt.len);
  for (std::size_t head = 0; head < prompt.shape.num_q_heads; ++head) {
    kvevict::projected_l1_norms(view.lane(0, head / group).values, prompt.shape.head_dim, 0,
                                prompt.len, projection.transposed(0, head),
                                kvevict::kernels::best(), gathered, widened, scratch, norms);
    for (std::size_t slot = 0; slot < prompt.len; ++slot)
      mean[head / group * prompt.len + slot] += norms[slot] / static_cast<float>(group);
  }
  return mean;
}

/// Masks of CriticalAdaKV; `make(budget)` is the policy.
template <class Make>
void compare_adaptive(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                      float rows_summed, Make&& make) {
  for (const WindowPrompt::Way& way : prompt.ways()) {
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      report.covers(decltype(policy)::kName);
      prompt.feed(policy, way);
      std::vector<float> scores = prompt.scores(policy, 0);
      for (float& score : scores)
        score /= rows_summed;
      compare_scores(golden, report, "base_scores", prompt.len, scores);
      const std::vector<int> keep = prompt.keep(policy);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
      std::vector<std::size_t> counts;
      for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
        const auto first = keep.begin() + static_cast<std::ptrdiff_t>(head * prompt.len);
        counts.push_back(static_cast<std::size_t>(
            std::count(first, first + static_cast<std::ptrdiff_t>(prompt.len), 1)));
      }
      report.equal("head_counts." + ratio, golden.tensor("head_counts." + ratio).values, counts);
    }
  }
}

/// Both stages of CriticalKV; `make(budget, first_stage)` is the policy, whose scores are
/// `rows_summed` times the case's.
template <class Make>
void compare_stages(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                    const Projection& projection, double rows_summed, Make&& make) {
  report.scores("projected_norm", golden.tensor("projected_norm").values,
                projected_norms(prompt, *projection));
  for (const WindowPrompt::Way& way : prompt.ways()) {
    auto whole = make(prompt.len, 1.0);
    report.covers(decltype(whole)::kName);
    prompt.feed(whole, way);
    std::vector<float> scores = prompt.scores(whole, 0);
    for (float& score : scores)
      score /= static_cast<float>(rows_summed);
    compare_scores(golden, report, "base_scores", prompt.len, scores);
    for (const std::string& ratio : ratios_of(golden)) {
      const std::size_t budget = golden.count("n_kept." + ratio);
      const std::size_t first = golden.count("n_stage1." + ratio);
      const double share = (1.0 - golden.real("ratio." + ratio)) * static_cast<double>(prompt.len) *
                           golden.real("first_stage_ratio");
      report.is_true("n_stage1." + ratio,
                     first == std::max<std::size_t>(1, static_cast<std::size_t>(share)));
      // kvpress takes the share of the budget before it is rounded: half an entry more than the
      // share of whole entries gives the same number.
      auto policy = make(budget, (static_cast<double>(first) + 0.5) / static_cast<double>(budget));
      prompt.feed(policy, way);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
      // The first stage alone is the base with so much less of a budget.
      auto base = make(first, 1.0);
      prompt.feed(base, way);
      report.equal("stage1." + ratio, golden.tensor("stage1." + ratio).values, prompt.keep(base));

      // The second scores, where the first stage left any.
      const auto view = prompt.view(prompt.len);
      const kvevict::ViewRef ref(view);
      kvevict::Scratch scratch;
      std::vector<float> second = prompt.scores(whole, 0);
      const kvevict::CriticalScores critical{
          .epsilon = static_cast<float>(golden.real("epsilon") * rows_summed),
          .projection = projection};
      for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
        critical.rescore({ref, whole.sequence(), kvevict::kernels::best(), scratch},
                         {head, std::span(second).subspan(head * prompt.len, prompt.len), {}, {}});
      }
      std::vector<double> expected;
      std::vector<double> actual;
      for (std::size_t i = 0; i < second.size(); ++i) {
        const double score = golden.tensor("scores." + ratio).values[i];
        if (!std::isfinite(score))
          continue;
        expected.push_back(score);
        actual.push_back(static_cast<double>(second[i]) / rows_summed);
      }
      report.scores("scores." + ratio, expected, actual);
    }
  }
}

/// Runs of the paper's form.
template <class P>
void compare_runs(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt = prompt_of_runs(golden);
  typename P::Options options;
  options.base.observation_window = prompt.window;
  options.output_projection = projection_of_layers(golden, prompt.shape);
  for (const std::string& run : golden.words("runs"))
    compare_prompt_run<P>(golden, report, prompt, run, options);
}

}  // namespace

void run_criticaladakv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_runs<kvevict::CriticalAdaKV>(golden, report);
  const auto run = [&](const WindowPrompt& prompt, float rows_summed, auto&& make) {
    const auto projection = projection_of(golden, prompt.shape);
    report.scores("projected_norm", golden.tensor("projected_norm").values,
                  projected_norms(prompt, *projection));
    compare_adaptive(golden, report, prompt, rows_summed,
                     [&](std::size_t budget) { return make(budget, projection); });
  };
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    return run(prompt, static_cast<float>(prompt.window),
               [&](std::size_t budget, const Projection& projection) {
                 const kvevict::AdaKVOptions base{
                     .budget = budget,
                     .observation_window = prompt.window,
                     .floor_rule = kvevict::FloorRule::kGuarantee,
                     .floor = golden.real("alpha_safeguard"),
                     .floor_of_whole = true,
                     .pooling = {.kernel_size = golden.count("kernel_size")},
                     .pool_first = true};
                 return over<kvevict::AdaKVRecipe>(golden, base, golden.real("first_stage_ratio"),
                                                   projection, prompt.shape);
               });
  }
  with_base_recipe(golden, [&]<class Base>(std::type_identity<Base>, const WindowPrompt& prompt) {
    using Ada = kvevict::AdaKVOver<Base>;
    run(prompt, 1.0F, [&](std::size_t budget, const Projection& projection) {
      typename Ada::Options base;
      set_base_options(golden, budget, base);
      base.floor = golden.real("alpha_safeguard");
      return over<Ada>(golden, base, golden.real("first_stage_ratio"), projection, prompt.shape);
    });
  });
}

void run_criticalkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_runs<kvevict::CriticalKV>(golden, report);
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    const Projection projection = projection_of(golden, prompt.shape);
    return compare_stages(
        golden, report, prompt, projection, static_cast<double>(prompt.window),
        [&](std::size_t budget, double first_stage) {
          const kvevict::SnapKVOptions base{.budget = budget,
                                            .observation_window = prompt.window,
                                            .pooling = {.kernel_size = golden.count("kernel_size")},
                                            .pool_first = true};
          return over<kvevict::SnapKVRecipe>(golden, base, first_stage, projection, prompt.shape);
        });
  }
  with_base_recipe(golden, [&]<class Base>(std::type_identity<Base>, const WindowPrompt& prompt) {
    const Projection projection = projection_of(golden, prompt.shape);
    compare_stages(golden, report, prompt, projection, 1.0,
                   [&](std::size_t budget, double first_stage) {
                     typename Base::Options base;
                     set_base_options(golden, budget, base);
                     return over<Base>(golden, base, first_stage, projection, prompt.shape);
                   });
  });
}

}  // namespace kvevict_test
