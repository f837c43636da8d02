#include <kvevict/core/shape.hpp>
#include "kvevict/elsewhere/file.hpp"
