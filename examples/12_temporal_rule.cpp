// A temporal rule of one's own over the scores of any recipe: what a token is worth follows from
// its scores in all steps so far. Here it is the largest one, which fades: a token that mattered
// once outlives some steps in which nothing looks at it.
#include "kvevict/kvevict.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

// The rule: what the score so far and that of the newest step make together.
struct FadingPeak {
  float fade = 0.9F;  // of a peak in each step

  float next(float before, float sample, float /*count*/) const {
    return std::max(fade * before, sample);
  }
};

// The policy: all of TOVA but its pipeline. Stages may follow behind the rule.
struct PeakTOVARecipe : kvevict::TOVARecipe {
  static constexpr std::string_view kName = "PeakTOVA";

  static auto pipeline(const Options& options, const kvevict::CacheShape& shape) {
    return kvevict::Pipeline(kvevict::ScoresOverSteps(
        shape, scope(options), kvevict::TOVARecipe::pipeline(options, shape), FadingPeak()));
  }
};
using PeakTOVA = kvevict::Policy<kvevict::Composed<PeakTOVARecipe>>;

// What stays of a prompt of three tokens and a fourth one, of which three have room. The prompt's
// last token looks at token 1, the fourth one does not.
template <class Policy>
bool keeps_token_1() {
  using kvevict::views::Tensor;
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  std::vector<float> rows(4 * 4);
  const Tensor tensor = Tensor::hnd(rows.data(), kvevict::ElementType::kF32, 4, 1, 4);
  Policy policy({.budget = 3}, shape);
  const auto step = [&](const std::vector<float>& attention) {
    const kvevict::views::ContiguousView view(shape, tensor, tensor, attention.size());
    policy.observe_attention(0, {.data = attention.data(), .num_q_heads = 1, .num_rows = 1});
    if (policy.wants_cache())  // a rule takes its sample here, behind the attention of all layers
      policy.observe_cache(view);
    return view;
  };
  policy.begin(3);
  policy.end_prefill(step({0.1F, 0.8F, 0.1F}));
  policy.append(1);
  return policy.select(step({0.4F, 0, 0.3F, 0.3F})).keeps(0, 0, 1);
}

int main() {
  const bool tova = keeps_token_1<kvevict::TOVA>();
  const bool peak = keeps_token_1<PeakTOVA>();
  std::printf("token 1: TOVA %s it, PeakTOVA %s it\n", tova ? "keeps" : "evicts",
              peak ? "keeps" : "evicts");
  return !tova && peak ? 0 : 1;
}
