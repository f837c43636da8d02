// Exit status 0 if both translation units do the same and share what has one address in a program.
#include "kept.hpp"

int main() {
  constexpr std::string_view kName = "StreamingLLM";
  constexpr std::string_view kOptions = "num_sink_tokens=4,recent_window=12";
  const bool same = kept(kName, kOptions, 100) == 16 &&
                    kept_in_other_unit(kName, kOptions, 100) == 16 &&
                    kept_in_other_unit("random-eviction", "budget=7", 100) == 7;
  const bool shared = kernels_in_other_unit() == &kvevict::kernels::best();
  return same && shared ? 0 : 1;
}
