#include "kept.hpp"

std::size_t kept_in_other_unit(std::string_view policy_name, std::string_view options,
                               std::size_t seq_len) {
  return kept(policy_name, options, seq_len);
}

const kvevict::kernels::KernelSet* kernels_in_other_unit() {
  return &kvevict::kernels::best();
}
