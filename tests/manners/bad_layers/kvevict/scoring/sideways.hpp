#include <immintrin.h>
#include "kvevict/kernels/avx2.hpp"
#include "kvevict/selection/top_k.hpp"
#include "top_k.hpp"
