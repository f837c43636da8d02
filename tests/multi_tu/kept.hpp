#ifndef KVEVICT_TESTS_MULTI_TU_KEPT_HPP_
#define KVEVICT_TESTS_MULTI_TU_KEPT_HPP_

#include "kvevict/kvevict.hpp"

#include <cstddef>
#include <string_view>

// All policies where the library as a whole is looked at; they take long to compile.
#if defined(KVEVICT_TEST_ALL_POLICIES)
using PoliciesOfTheTest = kvevict::NamedPolicies;
#else
using PoliciesOfTheTest = kvevict::PolicyList<kvevict::StreamingLLM, kvevict::RandomEviction>;
#endif

namespace {

/// Tokens that the named policy keeps of `seq_len`. Each translation unit has its own copy, which
/// goes through the library's shared inline functions.
std::size_t kept(std::string_view policy_name, std::string_view options, std::size_t seq_len) {
  const kvevict::CacheShape shape{
      .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  const kvevict::views::ContiguousView view(shape, {}, {}, seq_len);
  kvevict::AnyPolicy policy =
      kvevict::make_policy<PoliciesOfTheTest>(policy_name, options, {.shape = shape});
  policy.begin(seq_len);
  policy.end_prefill(view);
  return policy.select(view).count(0, 0);
}

}  // namespace

std::size_t kept_in_other_unit(std::string_view policy_name, std::string_view options,
                               std::size_t seq_len);
const kvevict::kernels::KernelSet* kernels_in_other_unit();

#endif  // KVEVICT_TESTS_MULTI_TU_KEPT_HPP_
