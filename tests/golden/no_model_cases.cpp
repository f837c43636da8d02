#include "golden/drivers.hpp"

#include <stdexcept>
#include <string>

namespace kvevict_test {

// In a build without the example engine.
void run_model(const GoldenCase& /*golden*/, GoldenReport& /*report*/, const std::string& path) {
  throw std::runtime_error("this build has no engine to run " + path);
}

}  // namespace kvevict_test
