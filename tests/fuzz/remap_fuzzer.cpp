// The same body for libFuzzer:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Itests \
//     tests/fuzz/remap_fuzzer.cpp -o remap_fuzzer && ./remap_fuzzer -max_len=4000
#include "fuzz/remap_body.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string difference = kvevict_test::RemapFuzz::run({data, size});
  if (difference.empty())
    return 0;
  std::fprintf(stderr, "%s\n", difference.c_str());
  std::abort();
}
