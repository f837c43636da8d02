// The policy's name and options come from the command line: NAME [key=value,key=value]. The name
// may be a composition.
#include "engine/policies.hpp"  // all policies, compiled once
#include "kvevict/views/contiguous_view.hpp"

#include <cstdio>
#include <string>
#include <vector>

using engine::make_policy;  // kvevict::make_policy in a file of its own

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "streaming_llm";
  const std::string options = argc > 2 ? argv[2] : "num_sink_tokens=2,recent_window=14";
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 8};
  std::vector<float> rows(64 * 8, 0.25F);
  const auto tensor =
      kvevict::views::Tensor::nhd(rows.data(), kvevict::ElementType::kF32, 64, 1, 8);
  const kvevict::views::ContiguousView view(shape, tensor, tensor, 64);

  try {
    const kvevict::AnyPolicy composed = make_policy(
        "snapkv(observation_window=16) + caote + ada(floor=0.1)", "budget=10%", {.shape = shape});
    std::printf("%s\n", composed.describe().c_str());

    // This engine has queries to give, but no hidden states: a policy that wants them is refused.
    kvevict::AnyPolicy policy = make_policy(
        name, options,
        {.shape = shape, .supplied = kvevict::Inputs::kAttention | kvevict::Inputs::kKeys});
    policy.begin(64);
    if (policy.wants_attention(0)) {
      policy.observe_queries(0,
                             {.data = rows.data(),
                              .num_q_heads = 2,
                              .num_rows = 32,
                              .head_stride = 256,
                              .row_stride = 8},
                             view);
    }
    policy.end_prefill(view);
    if (!policy.should_evict()) {
      std::printf("%s: nothing to evict\n", std::string(policy.name()).c_str());
      return 0;
    }
    const kvevict::KeepMask& keep = policy.select(view);
    std::printf("%s keeps %zu of 64:", std::string(policy.name()).c_str(), keep.count(0, 0));
    keep.for_each_kept_run(0, 0, [](std::size_t first, std::size_t last) {
      std::printf(" %zu..%zu", first, last - 1);
    });
    std::printf("\n");
  } catch (const kvevict::InvalidArgument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
